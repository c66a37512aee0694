"""Take a run through its epochs: metrics, checkpoints, interruptions, divergence, the end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import lpsgd
from lpsgd.lab.errors import Interrupted, LabError
from lpsgd.lab.events import EndEvent, EpochEvent, RunListener, StartEvent, StepEvent, WarningEvent
from lpsgd.lab.log.interface import LoggedRun
from lpsgd.lab.log.run_log import RunLog
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.store.metrics_file import MetricsMark, read_metrics
from lpsgd.lab.store.run_files import (
    RunResult,
    RunState,
    describe_environment,
    read_result,
    write_result,
)
from lpsgd.lab.store.run_folder import RunFolder, open_run
from lpsgd.lab.training import precision
from lpsgd.lab.training.build import load_data
from lpsgd.lab.training.checkpoint import CheckpointStore, fitting
from lpsgd.lab.training.epoch_row import epoch_row
from lpsgd.lab.training.metrics import state_bytes
from lpsgd.lab.training.numerics import numerics
from lpsgd.lab.training.options import RunOptions, check_options
from lpsgd.lab.training.parallel.world import ALONE, World
from lpsgd.lab.training.trainer import Diverged, Trainer

if TYPE_CHECKING:
    from lpsgd.lab.own.problem import Problem
    from lpsgd.lab.spectra.measure import RunMonitor

_VERSION = 1  # of checkpoints


def train(
    recipe: Recipe,
    folder: Path,
    *,
    label: str | None = None,
    options: RunOptions | None = None,
    stop: threading.Event | None = None,
    listen: RunListener = lambda event: None,
    world: World = ALONE,
    problem: Problem | None = None,
) -> RunResult:
    """Train ``recipe`` in ``folder`` from its newest checkpoint to the end; return its result.

    A run that has ended is not trained again. One that pauses, as ``options.until_epoch`` asks,
    returns the state "paused" and leaves no result.json. Setting ``stop`` makes the run save and
    raise `Interrupted`. ``listen`` hears of the start, steps, epochs, warnings and the end. Each
    process of a ``world`` calls this; the first one writes and hears. ``problem`` holds what the
    recipe only names: a model, data and a loss of the user's own.
    """
    options = options or RunOptions()
    listen = listen if world.main else (lambda event: None)
    check_options(recipe, options, world)
    with ExitStack() as stack:
        # opened by the first process; if that fails, it fails in all
        run = world.from_main(lambda: stack.enter_context(open_run(folder, recipe)))
        ended = world.from_main(lambda: read_result(folder))
        if ended is None:
            with numerics(recipe) as device, _lost_image_workers_explained():
                device = world.device(device)
                precision.require(recipe.precision, device)
                data = load_data(recipe, options, device, problem)
                trainer = Trainer(recipe, data, device, world, options.strategy, problem)
                environment = describe_environment(recipe.threads, str(device))
                if world.together:
                    environment |= {"processes": world.size, "strategy": options.strategy}
                label = label or recipe.optimizer
                if world.main:
                    run.begin(recipe, label, environment)
                stop = stop or threading.Event()
                session = _Session(trainer, run, options, stop, listen, problem)
                ended = session.run_all(label)
        listen(EndEvent(state=ended.state, epochs=ended.epochs, reason=ended.reason))
        return ended


@contextmanager
def _lost_image_workers_explained() -> Iterator[None]:
    """An error of our own for a DataLoader worker that was killed, mostly for want of memory.

    Torch raises it in a signal handler: wherever the main thread happens to be.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip()
        if not text.startswith("DataLoader worker"):
            raise
        raise LabError(
            f"a process that decodes images was lost: {text} What was saved before is kept."
        ) from error


@dataclass
class _Session:
    """A trainer with its folder: where in the epochs it is, and when it was last saved."""

    trainer: Trainer
    run: RunFolder
    options: RunOptions
    stop: threading.Event
    listen: RunListener
    problem: Problem | None = None
    epoch: int = 1
    batch: int = 0

    def __post_init__(self) -> None:
        self.world = self.trainer.world
        self.store = CheckpointStore(self.run.checkpoints, self._warn, self.world)
        self._saved_at = self._told_at = time.perf_counter()
        self._clock: float | None = None  # since when training time has not been added up
        self._curvature = self._curvature_monitor()

    def run_all(self, label: str) -> RunResult:
        self._resume()
        self.listen(StartEvent(step=self.trainer.step, total_steps=self.trainer.total_steps))
        with self._open_log(label) as log:
            result = self._train(log)
            log.finish(result.state)
        if self.world.main and result.state != "paused":
            write_result(self.run.folder, result)
        return result

    def _train(self, log: RunLog) -> RunResult:
        trainer, recipe = self.trainer, self.trainer.recipe
        first, last = self.epoch, min(self.options.until_epoch or recipe.epochs, recipe.epochs)
        try:
            if self.epoch == 1 and self.batch == 0:
                self._measure_curvature(0)
            while self.epoch <= last:
                self._train_epoch()
                self._end_epoch(log)
        except Diverged as failure:
            return self._result("diverged", str(failure), **failure.facts)
        if self.epoch <= recipe.epochs:
            if self.epoch > first:
                self._save()
            return self._result("paused", step=trainer.step)
        self.store.keep_only(self._save())
        return self._result("complete", step=trainer.step)

    # ------------------------------------------------------------------ epochs

    def _train_epoch(self) -> None:
        trainer = self.trainer
        self._clock = time.perf_counter()
        rows = None if self.world.size == 1 else lambda n: torch.cat(trainer.rows_here(n))
        batches = trainer.data.train.epoch(self.epoch - 1, start=self.batch, rows=rows)
        for batch in batches:
            last = self.batch + 1 == trainer.steps_per_epoch
            trainer.train_step(batch, measure=last)
            self.batch += 1
            self._between_steps()
        trainer.settle()
        self._add_seconds()
        self._clock = None

    def _between_steps(self) -> None:
        now = time.perf_counter()
        if now - self._told_at > 0.2:
            self._told_at = now
            self.listen(StepEvent(step=self.trainer.step))
        # the processes must agree: a signal may reach one alone, and clocks differ
        stop, due = self.world.any(
            self.stop.is_set(), now - self._saved_at >= self.options.save_seconds
        )
        if stop:
            self._save_and_leave()
        if due and self.trainer.data.train.resumable:
            self._save()

    def _end_epoch(self, log: RunLog) -> None:
        row = epoch_row(
            self.trainer,
            self.epoch,
            score_test=self.options.score_test,
            between=self._between_batches,
        )
        watched = "test" if self.options.score_test else "val" if self.trainer.data.val else "train"
        loss = row.get(f"{watched}_{self.trainer.objective.loss_name}") or 0.0
        if math.isfinite(loss):
            # before the metrics are written: a run stopped in here does both again
            self._measure_curvature(self.epoch)
        if self.world.main:
            self.run.metrics.append(row)
            log.log(row)
        self.listen(EpochEvent(metrics=row))
        if not math.isfinite(loss):
            facts = {name: row.get(name) for name in ("step", "lr", "p", "grad_norm")}
            raise Diverged(f"the {watched} loss became {loss}", facts)
        self.epoch += 1
        self.batch = 0
        self.trainer.start_epoch()
        if not self.trainer.data.train.resumable:
            self._save()

    def _curvature_monitor(self) -> RunMonitor | None:
        if self.options.curvature is None:
            return None
        from lpsgd.lab.spectra.measure import RunMonitor
        from lpsgd.lab.spectra.options import parse_options

        return RunMonitor(
            self.trainer.model,
            self.trainer.recipe,
            self.trainer.data,
            self.run.folder / "curvature.jsonl",
            parse_options(self.options.curvature),
            listen=self.listen,
            between=self._between_batches,
            problem=self.problem,
        )

    def _measure_curvature(self, epoch: int) -> None:
        if self._curvature is not None:
            with writing(self.run.folder):
                self._curvature(epoch, step=self.trainer.step, p=self.trainer.current_p())

    def _between_batches(self) -> None:
        (stop,) = self.world.any(self.stop.is_set())
        if stop:
            self._save_and_leave()

    # ------------------------------------------------------------------ files

    def _open_log(self, label: str) -> RunLog:
        logged = LoggedRun(self.run.folder, label, self.trainer.recipe, self._warn)
        names = self.options.log if self.world.main else ()
        rows = read_metrics(self.run.metrics.path) if names else ()
        return RunLog(names, logged, rows)

    def _resume(self) -> None:
        with fitting(self.run.checkpoints):
            state = self._newest()
            if state is not None:
                self.trainer.load_state_dict(state["trainer"])
                self.epoch, self.batch = state["epoch"], state["batch"]
                self._check_place()
        steps = self.world.gather(state and state["trainer"]["step"])
        if len(set(steps)) > 1:
            raise LabError(
                f"the processes found checkpoints of different steps ({steps}) in "
                f"{self.run.checkpoints}: the folder must be on storage that all machines share"
            )
        if self.world.main:
            self.run.metrics.truncate(MetricsMark(**state["metrics"]) if state else None)

    def _check_place(self) -> None:
        """Raise ValueError unless epoch, batch and step are places in this run."""
        recipe, batches = self.trainer.recipe, len(self.trainer.data.train)
        for name, value, low, high in (
            ("epoch", self.epoch, 1, recipe.epochs + 1),
            ("batch", self.batch, 0, batches),
            ("step", self.trainer.step, 0, self.trainer.total_steps),
        ):
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"{name}={value!r} is not from {low} to {high}")

    def _newest(self) -> dict[str, Any] | None:
        for state in self.store.load():
            if state.get("version") != _VERSION:
                raise LabError(
                    f"a checkpoint in {self.run.checkpoints} has version {state.get('version')!r}; "
                    f"lpsgd {lpsgd.__version__} knows version {_VERSION}. Use the lpsgd that wrote "
                    "it, or another folder"
                )
            if self.run.metrics.reaches(MetricsMark(**state["metrics"])):
                return state
            self._warn(f"{self.run.metrics.path} lost lines; using an earlier checkpoint")
        return None

    def _save(self) -> Path:
        self.trainer.settle()
        self._add_seconds()
        state = {
            "version": _VERSION,
            "epoch": self.epoch,
            "batch": self.batch,
            "trainer": self.trainer.state_dict(),
            "metrics": asdict(self.run.metrics.mark()),
        }
        with writing(self.run.folder):
            path = self.store.save(self.trainer.step, state)
        self._saved_at = time.perf_counter()
        if self._clock is not None:
            self._clock = self._saved_at  # saving is not training
        return path

    def _add_seconds(self) -> None:
        if self._clock is not None:
            now = time.perf_counter()
            self.trainer.sums.seconds += now - self._clock
            self._clock = now

    def _save_and_leave(self) -> None:
        if self.batch and not self.trainer.data.train.resumable:
            raise Interrupted(
                f"stopped in epoch {self.epoch} of {self.trainer.recipe.epochs}; the training data "
                "have no index, so the same command resumes at the beginning of this epoch"
            )
        self._save()
        raise Interrupted(
            f"stopped at step {self.trainer.step} of {self.trainer.total_steps} and saved in "
            f"{self.run.folder}; the same command resumes from there"
        )

    def _result(self, state: RunState, reason: str | None = None, **facts: Any) -> RunResult:
        return RunResult(
            state=state,
            epochs=self.epoch - 1,
            reason=reason,
            **facts,
            state_bytes=state_bytes(self.trainer.optimizer),
            parameters=sum(p.numel() for p in self.trainer.parameters),
        )

    def _warn(self, text: str) -> None:
        self.listen(WarningEvent(text=text))
