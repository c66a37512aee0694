"""Runs of several processes for the tests: what is trained, and how one process trains the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lpsgd.lab import models
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from lpsgd.lab.training.parallel.world import World
from tests.lab.small_runs import small_recipe

# Each batch can be shared evenly by 2 and by 3; the last batch of the test images has one image,
# so that with 3 processes some have none.
SMALL = {"batch_size": 36, "train_size": 144, "test_size": 73, "warmup_epochs": 0}
TWO_CLASSES = {"dataset": "synthetic", "data": {"classes": 2}}  # a layer of 2 rows: an empty part
LOOP = "lpsgd:LPSGDM:lr=1e-3,weight_decay=0.1,foreach=false"

RECIPES: dict[str, Recipe] = {
    f"{name} {normalize}": small_recipe(
        f"{name}:lr=1e-3,weight_decay=0.1,normalize={normalize}", **SMALL, **TWO_CLASSES
    )
    for name in ("lpsgd", "lpsgdm")
    for normalize in ("none", "rms", "dual")
}
RECIPES |= {
    "loop rms": small_recipe(f"{LOOP},normalize=rms", **SMALL, **TWO_CLASSES),
    "loop dual": small_recipe(f"{LOOP},normalize=dual", **SMALL, **TWO_CLASSES),
    "everything": small_recipe(
        "lpsgdm:lr=1e-2,normalize=dual",
        **{**SMALL, "batch_size": 35},  # shares of 18 and 17, in parts of 12, 12 and 11
        accumulate=3,
        clip_norm=0.5,
        label_smoothing=0.1,
        val_size=31,
        train_eval_every=1,
        ema=0.9,
        decay="matrices",
    ),
    "batch norm": small_recipe(
        "lpsgdm:lr=1e-2", **{**SMALL, "batch_size": 18, "train_size": 36}, model="resnet18", ema=0.5
    ),
    "convolutions": small_recipe(
        "adamw", **{**SMALL, "batch_size": 18, "train_size": 36}, model="vgg11_plain"
    ),
    "dropout": small_recipe(  # which the form for large images has
        "sgd:lr=1e-2",
        batch_size=7,
        train_size=14,
        test_size=2,
        accumulate=2,
        epochs=1,
        dataset="synthetic",
        data={"shape": [3, 72, 72]},
        model="vgg11_plain",
    ),
    "text": small_recipe(
        "lpsgdm:lr=1e-2", dataset="text", model="gpt", batch_size=6, train_size=24, test_size=7
    ),
}


@contextmanager
def in_double() -> Iterator[None]:
    """Make every network compute in float64."""
    create = models.create

    def double(*arguments: Any, **settings: Any) -> nn.Module:
        model = create(*arguments, **settings).double()
        model.register_forward_pre_hook(_widen)
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "create", double)
        yield


def _widen(model: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    (x,) = inputs
    return (x.double() if x.is_floating_point() else x,)


def here() -> World:
    return World(dist.get_rank(), dist.get_world_size(), together=True)


def run(recipe: Recipe, folder: Path, strategy: str = "ddp", **arguments: Any) -> Any:
    """Train in float64 with all processes of the group."""
    with in_double():
        options = RunOptions(save_seconds=1e9, strategy=strategy)
        return train(recipe, folder, options=options, world=here(), **arguments)
