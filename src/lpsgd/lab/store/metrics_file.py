"""metrics.jsonl: one row for each epoch, appended atomically, truncated when a run resumes."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.store.disk.jsonio import json_line, number, read_lines


@dataclass(frozen=True, kw_only=True)
class MetricsRow:
    """What was measured in one epoch; None where it was not. Accuracies are in percent."""

    epoch: int
    step: int | None = None
    lr: float | None = None
    p: float | None = None
    train_nll: float | None = None
    train_top1: float | None = None
    train_nll_eval: float | None = None
    val_nll: float | None = None
    val_top1: float | None = None
    test_nll: float | None = None
    test_top1: float | None = None
    test_top5: float | None = None
    update_rms: float | None = None
    grad_density: float | None = None
    grad_norm: float | None = None
    steps: int | None = None
    images_per_second: float | None = None
    seconds: float | None = None
    optimizer_seconds: float | None = None

    @property
    def alpha(self) -> float | None:
        """1 / (p - 1), which is 0 at p = inf."""
        return None if self.p is None else 1 / (self.p - 1)

    @property
    def accuracy(self) -> float | None:
        """On the test set or, where a search leaves that alone, on the validation split."""
        return self.val_top1 if self.test_top1 is None else self.test_top1

    @property
    def update_per_lr(self) -> float | None:
        """The update's root mean square divided by the learning rate."""
        return self.update_rms / self.lr if self.update_rms and self.lr else None

    def get(self, metric: str) -> float | None:
        """A metric by its name; None if there is none of this name."""
        found: float | None = getattr(self, metric, None)
        return found


_LARGEST = 1e100  # squares and sums of it are numbers, too
_COUNTS = ("epoch", "step", "steps")
_NUMBERS = tuple(field.name for field in fields(MetricsRow) if field.name not in _COUNTS)


def _row(values: dict[str, Any], place: int) -> MetricsRow:
    """The row of one line; its place is the epoch where it does not say."""
    found: dict[str, Any] = {name: number(values.get(name)) for name in _NUMBERS}
    for name, value in found.items():
        limit = 100.0 if "_top" in name else _LARGEST
        if value is not None and limit < abs(value) < math.inf:
            raise ValueError(f"{name}={value:g} is no measurement; at most {limit:g} is")
    counts = {name: v for name in _COUNTS if isinstance(v := values.get(name), int)}
    return MetricsRow(**{**found, "epoch": place, **counts})


def read_metrics(path: Path) -> tuple[MetricsRow, ...]:
    """The rows of ``path``; none if there is no such file."""
    rows = []
    for place, (where, values) in enumerate(read_lines(path), start=1):
        try:
            rows.append(_row(values, place))
        except (OverflowError, ValueError) as error:
            raise UserError(f"cannot read {where}: {error}") from None
    return tuple(rows)


@dataclass(frozen=True)
class MetricsMark:
    """How much of metrics.jsonl a checkpoint has seen."""

    size: int
    sha256: str


class MetricsFile:
    """metrics.jsonl of a run that is being trained."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: MetricsRow) -> None:
        """Add one row, atomically."""
        data = json_line(asdict(row)).encode()
        with writing(self.path.parent):
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                before = os.fstat(handle).st_size
                try:
                    while data:
                        data = data[os.write(handle, data) :]
                    os.fsync(handle)
                except OSError:
                    os.ftruncate(handle, before)
                    raise
            finally:
                os.close(handle)

    def mark(self) -> MetricsMark:
        """Describe the file as it is now."""
        data = self._bytes()
        return MetricsMark(len(data), hashlib.sha256(data).hexdigest())

    def reaches(self, mark: MetricsMark) -> bool:
        """Tell whether the file still begins with what ``mark`` describes."""
        data = self._bytes()
        if not 0 <= mark.size <= len(data):
            return False
        return hashlib.sha256(data[: mark.size]).hexdigest() == mark.sha256

    def truncate(self, mark: MetricsMark | None) -> None:
        """Drop the rows written after ``mark``, or all: they will be computed again."""
        with writing(self.path.parent):
            if mark is None or mark.size == 0:
                self.path.unlink(missing_ok=True)
            else:
                os.truncate(self.path, mark.size)

    def _bytes(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""
