"""What a measurement will take, told before it starts, and how far it is.

Progress is a bar on a terminal (if rich is installed), else plain lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import TextIO

import torch

from lpsgd.curvature.hessian import HessianOperator

_SECONDS_BETWEEN_LINES = 10.0
_SHARE_BETWEEN_LINES = 0.05  # of the time since the start, if that is more


@dataclass(frozen=True)
class Cost:
    """Seconds for all products, and bytes held meanwhile."""

    products: int
    seconds: float
    basis_bytes: int  # the Lanczos basis, on its own device
    graph_bytes: int  # graphs kept between products, on the device of the products

    def __str__(self) -> str:
        return (
            f"about {timedelta(seconds=ceil(self.seconds))}; memory {_size(self.basis_bytes)} "
            f"for the Lanczos basis and {_size(self.graph_bytes)} for graphs"
        )


def measure_cost(operator: HessianOperator, products: int, lanczos: int) -> Cost:
    """Run one product to fill the cache and time a second one."""
    vector = torch.ones(operator.shape[0], device=operator.device, dtype=operator.dtype)
    operator @ vector
    _synchronise(operator.device)
    start = time.perf_counter()
    operator @ vector
    _synchronise(operator.device)
    seconds = (time.perf_counter() - start) * products
    entry = torch.finfo(operator.dtype).bits // 8
    basis = min(lanczos, operator.shape[0]) * operator.shape[0] * entry
    return Cost(products, seconds, basis, operator.graph_bytes)


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GB" if count >= 2**27 else f"{count / 2**20:.1f} MB"


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def progress(label: str, total: int, stream: TextIO) -> Iterator[Callable[[], None]]:
    """Give a function to call after each of ``total`` steps."""
    try:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress
    except ModuleNotFoundError:
        bars = False
    else:
        bars = stream.isatty()
    if not bars:
        yield PlainProgress(label, total, stream)
        return
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


class PlainProgress:
    """A line with the time left, every ten seconds and later less often."""

    def __init__(self, label: str, total: int, stream: TextIO) -> None:
        self.label, self.total, self.stream = label, total, stream
        self.done, self.start = 0, time.monotonic()
        self.spoken = self.start

    def __call__(self) -> None:
        self.done += 1
        now = time.monotonic()
        pause = max(_SECONDS_BETWEEN_LINES, _SHARE_BETWEEN_LINES * (now - self.start))
        if now - self.spoken < pause or self.done == self.total:
            return
        self.spoken = now
        left = (now - self.start) / self.done * (self.total - self.done)
        time_left = timedelta(seconds=ceil(left))
        text = f"{self.label}: {self.done}/{self.total} products, {time_left} left"
        print(text, file=self.stream, flush=True)
