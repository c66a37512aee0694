"""What a comparison looks like while it runs: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lpsgd.lab.numbers import fixed
from lpsgd.lab.plan import Task
from lpsgd.lab.strict import number


class RunsDisplay:
    """Listens to the executor's events and shows where every optimizer is. Writes to stderr."""

    def __init__(self, tasks: Sequence[Task], console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._tasks = list(tasks)
        self._status = {task.folder: "waiting" for task in tasks}
        self._accuracy: dict[Any, float | None] = {}
        self._split = "test"  # which accuracies these are
        self._live = (
            Live(self._table(), console=self._console, refresh_per_second=4, transient=True)
            if self._console.is_terminal
            else None
        )

    def __enter__(self) -> RunsDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def already_done(self, task: Task, result: dict[str, Any]) -> None:
        """Note a run that had ended before."""
        self._status[task.folder] = result["state"]

    def listen(self, task: Task, event: dict[str, Any]) -> None:
        """Take in one event of one run."""
        kind = event["event"]
        if kind == "begin":
            self._status[task.folder] = "starting"
        elif kind == "epoch":
            self._split = "validation" if event["test_top1"] is None else "test"
            score = event["val_top1" if self._split == "validation" else "test_top1"]
            self._accuracy[task.folder] = number(score)
            self._status[task.folder] = f"epoch {event['epoch']}/{task.recipe.epochs}"
        elif kind == "warning":
            self._say(task, f"warning: {event['text']}")
        elif kind == "end":
            self._status[task.folder] = event["state"]
            self._say(task, self._ending(task, event))
        elif kind == "error":
            self._status[task.folder] = "failed"
            self._say(task, f"failed: {event['text']}")
        elif kind == "interrupted":
            self._status[task.folder] = "stopped"
        if self._live is not None:
            self._live.update(self._table())

    def _ending(self, task: Task, event: dict[str, Any]) -> str:
        if event["state"] == "diverged":
            return f"diverged: {event['reason']}"
        how = f"paused after epoch {event['epochs']}" if event["state"] == "paused" else "done"
        return f"{how}, {self._split} accuracy {fixed(self._accuracy.get(task.folder), 2)} %"

    def _say(self, task: Task, text: str) -> None:
        done = sum(s in ("complete", "diverged", "failed") for s in self._status.values())
        line = f"[{done}/{len(self._tasks)}] {task.label} seed {task.recipe.seed}: {text}"
        if self._live is not None:
            self._console.print(line, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("optimizer", "runs done", "now"):
            table.add_column(name)
        for label in dict.fromkeys(task.label for task in self._tasks):
            mine = [task for task in self._tasks if task.label == label]
            ended = [t for t in mine if self._status[t.folder] in ("complete", "diverged")]
            now = [self._now(t) for t in mine if t not in ended]
            table.add_row(label, f"{len(ended)}/{len(mine)}", ", ".join(filter(None, now)))
        return table

    def _now(self, task: Task) -> str:
        status = self._status[task.folder]
        if status == "waiting":
            return ""
        known = self._accuracy.get(task.folder)
        accuracy = "" if known is None else f" ({fixed(known, 1)} %)"
        return f"seed {task.recipe.seed}: {status}{accuracy}"
