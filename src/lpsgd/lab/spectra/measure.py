"""Measuring the spectra of the laboratory's runs, in training and from checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from lpsgd.curvature import CurvatureMonitor
from lpsgd.lab.errors import LabError
from lpsgd.lab.events import CurvatureEvent, CurvatureProgressEvent, RunListener
from lpsgd.lab.formatting import duration
from lpsgd.lab.own.curvature import LossModule, loss_itself, whole_batches
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.spectra.options import CurvatureOptions
from lpsgd.lab.store.run_folder import read_recipe, run_of
from lpsgd.lab.training.build import load_data, make_network, make_objective
from lpsgd.lab.training.checkpoint import CheckpointStore, fitting, is_checkpoint, read_checkpoint
from lpsgd.lab.training.numerics import numerics
from lpsgd.lab.training.options import RunOptions

if TYPE_CHECKING:
    from lpsgd.lab.data import Data
    from lpsgd.lab.own.problem import Problem
    from lpsgd.lab.spectra.records import CurvatureRecord


class RunMonitor(CurvatureMonitor):
    """The spectrum of the training loss on un-augmented training examples.

    It measures before the first epoch, at the epochs that are asked for, and after the last.
    What it has to say goes to ``listen`` as events, or without that to standard error.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        data: Data,
        path: Path,
        options: CurvatureOptions,
        *,
        listen: RunListener | None = None,
        between: Callable[[], None] = lambda: None,
        problem: Problem | None = None,
    ) -> None:
        self._listen = listen
        loss: Any = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        batches: Any = data.train.plain()
        if problem is not None and problem.has_data:
            model = LossModule(model, make_objective(recipe, problem))
            loss, batches = loss_itself, whole_batches(batches)
        super().__init__(
            model,
            loss,
            batches,
            path,
            every=lambda epoch: epoch % options.every == 0 or epoch == recipe.epochs,
            probes=options.probes,
            lanczos=options.lanczos,
            samples=options.samples,
            batchnorm=options.batchnorm,
            modules="*" if options.layers else None,
            between=between,
        )

    def measure(self, epoch: int, **extra: Any) -> dict[str, Any]:
        record = super().measure(epoch, **extra)
        self.say(summary_line(cast("CurvatureRecord", record)))
        return record

    def say(self, text: str) -> None:
        if self._listen is None:
            super().say(text)
        else:
            self._listen(CurvatureEvent(text=text))

    def progress(self, label: str, total: int) -> AbstractContextManager[Callable[[], None]]:
        listen = self._listen
        if listen is None:
            return super().progress(label, total)
        done = count(1)

        def advance() -> None:
            listen(CurvatureProgressEvent(label=label, done=next(done), total=total))

        return nullcontext(advance)


def summary_line(record: CurvatureRecord) -> str:
    """One line about one measurement."""
    numbers = record["statistics"]
    return (
        f"curvature at epoch {record['epoch']}: λ from {numbers['lambda_min']:.3g} "
        f"to {numbers['lambda_max']:.3g}, anisotropy {numbers['anisotropy'] or 0:.3g}, "
        f"effective rank {numbers['effective_rank'] or 0:.3g}, "
        f"{numbers['outlier_count']} outliers, {duration(record['seconds'])}"
    )


def measure_checkpoints(
    source: Path,
    path: Path,
    options: CurvatureOptions,
    *,
    every_checkpoint: bool,
    root: Path | None,
    problem: Problem | None = None,
) -> None:
    """Measure the newest checkpoint of a run, all that it kept, or the one file ``source``."""
    folder = run_of(source)
    recipe = read_recipe(folder)
    states = _states(source, folder, every_checkpoint)
    with numerics(recipe) as device:
        data = load_data(recipe, RunOptions(root=root), device, problem)
        model = make_network(recipe, data, problem).to(device)
        monitor = RunMonitor(model, recipe, data, path, options, problem=problem)
        for state in states:
            with fitting(folder / "checkpoints"):
                trainer = state["trainer"]
                model.load_state_dict(trainer["model"])
                batches = state["batch"] / len(data.train)
                epoch = state["epoch"] - 1 + (int(batches) if batches in (0, 1) else batches)
                p = trainer["optimizer"]["param_groups"][0].get("p")
                step = int(trainer["step"])
            monitor.measure(epoch, step=step, p=None if p is None else float(p))


def _states(source: Path, folder: Path, every_checkpoint: bool) -> list[dict[str, Any]]:
    """The states to measure, oldest first."""
    if is_checkpoint(source):
        state = read_checkpoint(source)
        if state is None:
            raise LabError(f"{source} is damaged")
        return [state]

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    newest_first = CheckpointStore(folder / "checkpoints", warn).load()
    states = list(islice(newest_first, None if every_checkpoint else 1))
    if not states:
        raise LabError(f"{folder} has no intact checkpoint")
    return states[::-1]
