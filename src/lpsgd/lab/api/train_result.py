"""What `lpsgd.lab.train` returns: the run, its history, and the trained network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.recipe import Recipe
from lpsgd.lab.store.metrics_file import read_metrics
from lpsgd.lab.store.run_files import RunResult
from lpsgd.lab.training.options import RunOptions

if TYPE_CHECKING:
    from torch import nn

    from lpsgd.lab.own.problem import Problem


@dataclass(frozen=True, repr=False)
class TrainResult:
    """A run that was trained.

    Attributes:
        folder: where it is.
        recipe: everything that decided it.
        result: how it ended.
        options: how it was executed.
        problem: the objects that it was given.
    """

    folder: Path
    recipe: Recipe
    result: RunResult
    options: RunOptions
    problem: Problem | None = None

    @property
    def state(self) -> str:
        """``complete`` or ``diverged``."""
        return self.result.state

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """What was measured after each epoch."""
        rows = read_metrics(self.folder / "metrics.jsonl")
        return [{k: v for k, v in row.flat().items() if v is not None} for row in rows]

    def load_model(self) -> nn.Module:
        """A new network on the CPU with the weights of the last checkpoint, ready to be used."""
        import torch

        from lpsgd.lab.store.run_folder import final_checkpoint
        from lpsgd.lab.training.build import load_data, load_weights, make_network

        data = load_data(self.recipe, self.options, torch.device("cpu"), self.problem)
        model = make_network(self.recipe, data, self.problem)
        load_weights(model, final_checkpoint(self.folder))
        return model.eval()

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        scores = {k: v for k, v in last.items() if k.startswith(("train_", "val_", "test_"))}
        shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        return f"{self.state} after {self.result.epochs} epochs: {shown}\nRun: {self.folder}"
