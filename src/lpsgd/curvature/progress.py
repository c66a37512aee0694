"""How far a measurement is: a bar on a terminal (if rich is installed), else plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import TextIO

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(label: str, total: int, stream: TextIO | None = None) -> Iterator[Callable[[], None]]:
    """Give a function to call after each of ``total`` steps."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        try:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )
        except ModuleNotFoundError:
            pass
        else:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            console = Console(file=stream)
            with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
                task = bar.add_task(label, total=total)
                yield lambda: bar.advance(task)
            return
    yield PlainProgress(label, total, stream)


class PlainProgress:
    """One line every ten seconds with the time left."""

    def __init__(self, label: str, total: int, stream: TextIO) -> None:
        self.label, self.total, self.stream = label, total, stream
        self.done, self.start = 0, time.monotonic()
        self.spoken = self.start

    def __call__(self) -> None:
        self.done += 1
        now = time.monotonic()
        if now - self.spoken < _SECONDS_BETWEEN_LINES or self.done == self.total:
            return
        self.spoken = now
        left = (now - self.start) / self.done * (self.total - self.done)
        time_left = timedelta(seconds=ceil(left))
        text = f"{self.label}: {self.done}/{self.total} products, {time_left} left"
        print(text, file=self.stream, flush=True)
