"""What many runs look like while they are trained: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lpsgd.lab import events
from lpsgd.lab.events import RunEvent
from lpsgd.lab.execution.notebook import NotebookOutput
from lpsgd.lab.execution.progress import ENDED, progress_line, progress_table
from lpsgd.lab.plan import Task
from lpsgd.lab.store.manifest import planned_run
from lpsgd.lab.store.run_files import RunResult
from lpsgd.lab.store.status import RunProgress

_REFRESH_SECONDS = 0.25
# Without a terminal: time between two lines about all runs, which grows with the time gone by.
_SUMMARY_SECONDS = 60.0
_SUMMARY_SHARE = 0.05


class RunsDisplay:
    """Listens to the executor's events and shows where every run is. Writes to stderr."""

    def __init__(
        self,
        tasks: Sequence[Task],
        console: Console | None = None,
        *,
        title: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._networks = bool(title) or len({_network(task) for task in tasks}) > 1
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        self._runs = {
            task.folder: RunProgress(**vars(planned_run(task, str(task.folder)))) for task in tasks
        }
        self._starts: dict[Path, tuple[events.StartEvent, float]] = {}
        self._measuring: dict[Path, Callable[[], None]] = {}
        self._scores: dict[Path, str] = {}  # the last ones, in words
        self._began = self._drawn = self._summed = clock()
        self._live: Live | NotebookOutput | None = None
        if self._console.is_jupyter:
            self._live = NotebookOutput()
        elif self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> RunsDisplay:
        if self._live is not None:
            self._live.start()
            self._live.update(self._table(), refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def already_done(self, task: Task, result: RunResult) -> None:
        """Note a run that had ended before."""
        self._set(task, state=result.state, epoch=result.epochs)

    def listen(self, task: Task, event: RunEvent) -> None:
        """Take in one event of one run."""
        match event:
            case events.AssignedEvent():
                self._set(task, state="running")
            case events.StartEvent():
                self._starts[task.folder] = event, self._clock()
            case events.StepEvent():
                self._keep_pace(task, event.step)
            case events.EpochEvent(metrics=row):
                named = row.score or ("", "")
                self._scores[task.folder] = " ".join(named)
                self._set(task, epoch=row.epoch, accuracy=row.accuracy, score=named[1])
                self._keep_pace(task, row.step or 0)
            case events.WarningEvent():
                self._say(task, f"warning: {event.text}")
            case events.CurvatureEvent():
                self._say(task, event.text)
            case events.CurvatureProgressEvent():
                self._count_product(task, event)
            case events.EndEvent():
                self._set(task, state=event.state, seconds_left=None, reason=event.reason)
                self._say(task, self._ending(task, event))
            case events.ErrorEvent():
                self._set(task, state="failed", seconds_left=None, reason=event.text)
                self._say(task, f"failed: {event.text}")
            case events.InterruptedEvent():
                # a run that had not begun still waits
                began = self._runs[task.folder].state != "queued"
                self._set(task, state="interrupted" if began else "queued", seconds_left=None)
        self._show(at_once=isinstance(event, events.FinalEvent))

    def _set(self, task: Task, **changes: Any) -> None:
        self._runs[task.folder] = replace(self._runs[task.folder], **changes)

    def _keep_pace(self, task: Task, step: int) -> None:
        start, began = self._starts.get(task.folder, (None, 0.0))
        if start is None or step <= start.step:
            return
        seconds = (self._clock() - began) / (step - start.step)
        self._set(
            task,
            seconds_left=seconds * (start.total_steps - step),
            seconds_per_epoch=seconds * start.total_steps / task.recipe.epochs,
        )

    def _count_product(self, task: Task, event: events.CurvatureProgressEvent) -> None:
        """Show how far a measurement is: in the table, or as lines with the time left."""
        at = f"{event.label}: {event.done}/{event.total} products"
        self._set(task, note=at if event.done < event.total else None)
        if self._live is not None:
            return
        if event.done == 1:
            from lpsgd.curvature.progress import PlainProgress

            label = f"{self._name(task)}: {event.label}"
            self._measuring[task.folder] = PlainProgress(label, event.total, sys.stderr)
        self._measuring[task.folder]()

    def _ending(self, task: Task, event: events.EndEvent) -> str:
        if event.state == "diverged":
            return f"diverged: {event.reason}"
        how = f"paused after epoch {event.epochs}" if event.state == "paused" else "done"
        score = self._scores.get(task.folder)
        return f"{how}, {score}" if score else how

    def _say(self, task: Task, text: str) -> None:
        self._print(f"{self._name(task)}: {text}")

    def _name(self, task: Task) -> str:
        done = sum(run.state in ENDED for run in self._runs.values())
        network = [f"{_network(task)},"] * self._networks
        run = [task.label, "seed", str(task.recipe.seed)]
        return " ".join(
            [*[self._title] * bool(self._title), f"[{done}/{len(self._runs)}]", *network, *run]
        )

    def _print(self, line: str) -> None:
        if isinstance(self._live, Live):
            self._console.print(line, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def _show(self, *, at_once: bool) -> None:
        now = self._clock()
        if self._live is not None:
            if at_once or now - self._drawn >= _REFRESH_SECONDS:
                self._drawn = now
                self._live.update(self._table(), refresh=True)
        elif now - self._summed >= max(_SUMMARY_SECONDS, _SUMMARY_SHARE * (now - self._began)):
            self._summed = now
            self._print(progress_line(list(self._runs.values()), self._title))

    def _table(self) -> Table:
        # the heading, the line below, and room for what was printed above
        rows = self._console.height - 4
        return progress_table(list(self._runs.values()), rows=rows, title=self._title)


def _network(task: Task) -> str:
    return planned_run(task, "").network
