"""What a logger is."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lpsgd.lab.recipe import Recipe, to_json


@dataclass(frozen=True)
class LoggedRun:
    """What loggers are told of a run before its first epoch."""

    folder: Path
    label: str
    recipe: Recipe
    warn: Callable[[str], None] = lambda text: None

    @property
    def name(self) -> str:
        """What the run is called in a list of runs."""
        return f"{self.label}, seed {self.recipe.seed}"

    def settings(self) -> dict[str, Any]:
        """The recipe as one level of plain values, ``settings.lr`` for the optimizer's lr."""
        values = to_json(self.recipe)
        nested = {
            f"{group}.{name}": value
            for group in ("data", "settings")
            for name, value in values.pop(group).items()
        }
        return values | nested


class Logger(Protocol):
    """Where a run's metrics go beside its folder. It may fail: training continues without it."""

    def check(self) -> None:
        """Raise LabError, with what to do, if nothing can be logged here."""

    def start(self, run: LoggedRun) -> Container[int]:
        """Begin to log ``run``, or continue after a stop or a kill; return the epochs it has."""

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log the metrics of one epoch."""

    def finish(self, state: str) -> None:
        """Say how the run ended: complete, diverged, paused or interrupted."""
