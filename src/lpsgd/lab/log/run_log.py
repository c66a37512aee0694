"""The loggers of one run: they get every epoch once, and cannot harm the training."""

from __future__ import annotations

import random
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import torch

from lpsgd.lab.log import LoggedRun, Logger, make_logger
from lpsgd.lab.store.metrics_file import MetricsRow

_RETRY_SECONDS = 60.0  # a server that does not answer delays training no more often than this


class RunLog:
    """Hands the rows of metrics.jsonl to loggers, with those that a logger lacks first.

    An error of a logger is a warning; the rows that it missed are logged when it works again.
    """

    def __init__(self, names: Sequence[str], run: LoggedRun, rows: Sequence[MetricsRow]) -> None:
        self._rows = list(rows)
        with _randomness_kept():
            self._followers = [_Follower(name, make_logger(name), run) for name in names]

    def __enter__(self) -> RunLog:
        self._bring_up_to_date()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish("interrupted")

    def log(self, row: MetricsRow) -> None:
        """Log an epoch that has ended."""
        self._rows.append(row)
        self._bring_up_to_date()

    def finish(self, state: str) -> None:
        """Say how the run ended; later calls do nothing."""
        for follower in self._followers:
            follower.retry_at = 0.0
        self._bring_up_to_date()
        for follower in self._followers:
            with _randomness_kept():
                follower.finish(state)
        self._followers = []

    def _bring_up_to_date(self) -> None:
        for follower in self._followers:
            with _randomness_kept():
                follower.catch_up(self._rows)


@dataclass
class _Follower:
    """A logger, which epochs it has, and when to try again after an error."""

    name: str
    logger: Logger
    run: LoggedRun
    there: Container[int] | None = None  # None until it has started
    logged: set[int] = field(default_factory=set)
    retry_at: float = 0.0

    def catch_up(self, rows: Sequence[MetricsRow]) -> None:
        if time.monotonic() < self.retry_at:
            return
        try:
            if self.there is None:
                self.there = self.logger.start(self.run)
            for row in rows:
                if row.epoch not in self.logged and row.epoch not in self.there:
                    self.logger.log(row.epoch, _values(row))
                self.logged.add(row.epoch)
        except Exception as error:  # whatever a package of others raises
            self.retry_at = time.monotonic() + _RETRY_SECONDS
            self.run.warn(
                f"--log {self.name}: {_first_line(error)}. Training continues; the epochs that "
                "are missing there are logged when it works again"
            )

    def finish(self, state: str) -> None:
        if self.there is None:
            return
        try:
            self.logger.finish(state)
        except Exception as error:
            self.run.warn(
                f"--log {self.name}: {_first_line(error)}. The numbers are in metrics.jsonl"
            )


def _values(row: MetricsRow) -> dict[str, float]:
    """The numbers of a row, without what was not measured."""
    return {
        name: float(value)
        for name, value in row.flat().items()
        if value is not None and name != "epoch"
    }


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:300]


@contextmanager
def _randomness_kept() -> Iterator[None]:
    """Packages of others may draw random numbers; the training must not notice."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
