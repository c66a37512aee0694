"""Small runs for the tests of the laboratory, and what two equal runs must have in common."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpsgd.lab.errors import Interrupted
from lpsgd.lab.plan import resolve
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.build import load_data
from lpsgd.lab.training.checkpoint import CheckpointStore
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from lpsgd.lab.training.trainer import Trainer

CPU = torch.device("cpu")

# What two equal runs may differ in: everything else in a row follows from the recipe.
WALL_CLOCK_FIELDS = ("images_per_second", "seconds", "optimizer_seconds")


def small_recipe(optimizer: str = "sgd:lr=0.05", **values: Any) -> Recipe:
    """Eight steps in two epochs on 128 digits."""
    small = {"epochs": 2, "width": 8, "train_size": 128, "test_size": 64, "batch_size": 32}
    return resolve({**small, **values}, optimizer)


def load(recipe: Recipe) -> Any:
    return load_data(recipe, RunOptions(), CPU)


def batches(trainer: Trainer) -> list[tuple[Tensor, Tensor]]:
    return [b for epoch in range(2) for b in trainer.data.train.epoch(epoch)]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock decides."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key not in WALL_CLOCK_FIELDS}
        for line in lines
    ]


def assert_same_run(one: Path, other: Path) -> None:
    """The same metrics to the last digit, the same weights and state to the last bit."""
    assert metrics(one) == metrics(other)
    assert read(one, "result.json") == read(other, "result.json")
    first, second = load_weights(one)["trainer"], load_weights(other)["trainer"]
    for part in ("model", "optimizer", "ema", "scaler", "rng", "step"):
        assert_equal(first[part], second[part], part)


def assert_equal(one: Any, other: Any, where: str) -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{where}.{index}")
    else:
        assert one == other, where


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


class StopAfter:
    """A stop request that comes after it was looked at ``count`` times, as a signal might."""

    def __init__(self, count: int) -> None:
        self.left = count

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def train_with_stops(recipe: Recipe, folder: Path, seed: int) -> int:
    """Train to the end, stopped every few batches, of evaluation too; count the stops."""
    chance = random.Random(seed)
    for stops in range(100):
        try:
            train(recipe, folder, stop=StopAfter(chance.randrange(12)))  # type: ignore[arg-type]
        except Interrupted:
            continue
        return stops
    raise AssertionError("it never ends")


def train_in_child(values: dict[str, Any], folder: str, save_seconds: float) -> None:
    """What a child process runs in the tests that kill it."""
    from lpsgd.lab.recipe import make_recipe

    train(make_recipe(values), Path(folder), options=RunOptions(save_seconds=save_seconds))


def load_weights(run_folder: Path) -> dict[str, Any]:
    """The newest intact checkpoint of a run: ``["trainer"]["model"]`` is its state dict."""
    return next(CheckpointStore(run_folder / "checkpoints", lambda _: None).load())
