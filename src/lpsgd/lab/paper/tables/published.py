"""The paper's Tables 1 to 6 as data: results (1 to 3) and chosen settings (4 to 6).

Names are the paper's; `MODELS` and `OPTIMIZERS` translate them into the laboratory's. Beside them
are the learning rates that `scripts/retune_paper.py` found for runs as short as those of a scale.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from lpsgd.lab.errors import LabError

DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet1k": "ImageNet-1K"}
MODELS = {"VGG-11": "vgg11", "ResNet-18": "resnet18", "ResNet-50": "resnet50"}
OPTIMIZERS = {"SGD w/ Momentum": "sgd", "AdamW": "adamw", "Lion": "lion", "LPSGDM": "lpsgdm"}
OURS = "LPSGDM"
SCHEDULE = "warmup cosine decay"

Row = TypeVar("Row")


@dataclass(frozen=True)
class Result:
    """One number of Tables 1 to 3 with its deviation over seeds."""

    dataset: str
    model: str
    optimizer: str
    metric: str
    epoch: int
    mean: float
    std: float


@dataclass(frozen=True)
class Setting:
    """One row of Tables 4 to 6; None where the table has a dash."""

    dataset: str
    model: str
    optimizer: str
    batch_size: int
    p_max: float | None
    lr: float
    schedule: str
    beta1: float
    beta2: float | None
    weight_decay: float
    eps: float | None


@dataclass(frozen=True)
class RetunedRate:
    """The learning rate that a search at the length of a scale chose for a row of Tables 4 to 6."""

    scale: str
    dataset: str
    model: str
    optimizer: str
    lr: float


@cache
def result_rows() -> tuple[Result, ...]:
    """Every number of Tables 1 to 3, in the paper's order."""
    return read_rows("results.csv", Result)


@cache
def setting_rows() -> tuple[Setting, ...]:
    """The 28 rows of Tables 4 to 6."""
    return read_rows("hyperparameters.csv", Setting)


@cache
def retuned_rates() -> tuple[RetunedRate, ...]:
    """Every rate that was searched again."""
    return read_rows("retuned.csv", RetunedRate)


def read_rows(name: str, kind: type[Row]) -> tuple[Row, ...]:
    """The rows of one of the paper's CSV files as objects of ``kind``; an empty cell is None."""
    text = (resources.files("lpsgd.lab.paper") / name).read_text(encoding="utf-8")
    return tuple(parse_row(row, kind) for row in csv.DictReader(text.splitlines()))


def parse_row(row: Mapping[str, str], kind: type[Row]) -> Row:
    """One row, given as text, with the types of ``kind``."""
    return TypeAdapter(kind).validate_python({name: cell or None for name, cell in row.items()})


def result(dataset: str, model: str, optimizer: str, metric: str, epoch: int) -> Result:
    """The number of that place in the tables."""
    for found in result_rows():
        place = (found.dataset, found.model, found.optimizer, found.metric, found.epoch)
        if place == (dataset, model, optimizer, metric, epoch):
            return found
    raise KeyError((dataset, model, optimizer, metric, epoch))


def setting(dataset: str, model: str, optimizer: str) -> Setting:
    """The row of that place in Tables 4 to 6."""
    for row in setting_rows():
        if (row.dataset, row.model, row.optimizer) == (dataset, model, optimizer):
            return row
    raise KeyError((dataset, model, optimizer))


def models(dataset: str) -> tuple[str, ...]:
    """The models that a data set's table has rows for."""
    return tuple(dict.fromkeys(row.model for row in setting_rows() if row.dataset == dataset))


def checkpoints(dataset: str) -> tuple[int, ...]:
    """The epochs that a data set's table reports: 50, 100, 200 or 20, 40, 60."""
    return tuple(sorted({row.epoch for row in result_rows() if row.dataset == dataset}))


def recipe_values(row: Setting) -> dict[str, Any]:
    """The recipe fields that a row of Tables 4 to 6 decides, in the laboratory's names."""
    if row.schedule != SCHEDULE:
        raise LabError(f"hyperparameters.csv: schedule {row.schedule!r}; known: {SCHEDULE!r}")
    return {
        "model": MODELS[row.model],
        "optimizer": OPTIMIZERS[row.optimizer],
        "settings": _optimizer_settings(row),
        "batch_size": row.batch_size,
        "lr_schedule": "cosine",
    }


def _optimizer_settings(row: Setting) -> dict[str, Any]:
    common: dict[str, Any] = {"lr": row.lr, "weight_decay": row.weight_decay}
    if row.optimizer == "SGD w/ Momentum":
        return {**common, "momentum": row.beta1}
    if row.optimizer == "AdamW":
        return {**common, "betas": [row.beta1, row.beta2], "eps": row.eps}
    if row.optimizer == "Lion":
        return {**common, "betas": [row.beta1, row.beta2]}
    lp = {"momentum": row.beta1, "p": row.p_max, "p_schedule": "cosine", "eps": row.eps}
    return {**common, **lp}
