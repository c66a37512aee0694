"""What one run looks like while it is trained: a progress bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from lpsgd.lab import events
from lpsgd.lab.events import RunEvent, RunListener
from lpsgd.lab.execution.notebook import NotebookOutput
from lpsgd.lab.formatting import short
from lpsgd.lab.store.metrics_file import MetricsRow


class RunDisplay:
    """Shows a run on stderr. Entered, it gives the listener for the run's events."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._measuring: Callable[[], None] = lambda: None
        columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._notebook = NotebookOutput() if console.is_jupyter else None
        self._steps = 0
        self._training = self._bar.add_task("training", total=None)

    def __enter__(self) -> RunListener:
        self._bar.start()
        if self._notebook is not None:
            self._notebook.start()
        return self._listen

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._notebook is not None:
            self._notebook.stop()

    def _listen(self, event: RunEvent) -> None:
        match event:
            case events.StartEvent():
                self._steps = event.total_steps
                self._update(total=event.total_steps, completed=event.step)
            case events.StepEvent():
                self._update(completed=event.step)
            case events.EpochEvent(metrics=row):
                self._say(_epoch_line(row, self._epochs))
                self._update(completed=row.step)
            case events.WarningEvent():
                self._say(f"warning: {event.text}")
            case events.CurvatureEvent():
                self._say(event.text)
            case events.CurvatureProgressEvent():
                # the time left of a measurement: a second bar while it is made, or lines
                if event.done == 1:
                    self._measuring = self._begin_products(event.label, event.total)
                self._measuring()

    def _update(self, **changes: Any) -> None:
        self._bar.update(self._training, **changes)
        if self._notebook is not None:
            self._notebook.update(f"step {changes['completed']} of {self._steps}")

    def _begin_products(self, label: str, total: int) -> Callable[[], None]:
        if self._bar.disable:
            from lpsgd.curvature.progress import PlainProgress

            return PlainProgress(label, total, sys.stderr)
        task = self._bar.add_task(label, total=total)

        def advance() -> None:
            self._bar.advance(task)
            if self._bar.tasks[-1].finished:
                self._bar.remove_task(task)

        return advance

    def _say(self, text: str) -> None:
        if self._bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(text, markup=False, highlight=False)


def _epoch_line(row: MetricsRow, epochs: int) -> str:
    p = "" if row.p is None else f"  p {row.p:.3g}"
    scores = [f"{name.replace('_', ' ', 1)} {short(value)}" for name, value in row.scores.items()]
    if not scores:
        scores = [f"train NLL {row.train_nll:.4f}", f"test NLL {row.test_nll:.4f}"]
        scores.append(f"top-1 {row.test_top1:.2f} %")
    speed = f"{row.images_per_second:.0f} {'examples' if row.scores else 'images'}/s"
    return "  ".join([f"epoch {row.epoch}/{epochs}", *scores, f"lr {row.lr:.3g}{p}", speed])
