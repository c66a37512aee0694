"""metrics.jsonl: one row for each epoch, appended atomically, truncated when a run resumes."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.formatting import fixed, short
from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.store.disk.jsonio import json_line, number, read_lines

SMALLEST_UPDATE = 1e-8
"""What float32 resolves of an update."""


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
    scores: Mapping[str, float] = field(default_factory=dict)
    """Of a loss and metrics that the user gave, such as ``test_f1``."""

    @classmethod
    def of(cls, scores: Mapping[str, float], **values: Any) -> MetricsRow:
        """A row with these scores: of the user's own loss and metrics, or in fields of their name.

        A metric of the user's that has the name of a field may be something else.
        """
        if _OWN_LOSS in scores:
            return cls(**values, scores=scores)
        values |= {name: score for name, score in scores.items() if name in _NUMBERS}
        return cls(**values)

    def flat(self) -> dict[str, Any]:
        """The values by their names, as one line of metrics.jsonl has them."""
        values = asdict(self)
        scores = values.pop("scores")
        # of a user's own problem, what the laboratory would have measured was not
        kept = {name: v for name, v in values.items() if not (scores and name.startswith(_SPLITS))}
        return {**kept, **scores}

    @property
    def alpha(self) -> float | None:
        """1 / (p - 1), which is 0 at p = inf."""
        return None if self.p is None else 1 / (self.p - 1)

    @property
    def accuracy(self) -> float | None:
        """On the test set or, where a search leaves that alone, on the validation split."""
        return self.val_top1 if self.test_top1 is None else self.test_top1

    @property
    def score(self) -> tuple[str, str] | None:
        """The score that decides, named and as text; of the test set or, failing that, validation.

        >>> MetricsRow(epoch=1, val_top1=91.5).score
        ('validation accuracy', '91.50 %')
        >>> MetricsRow(epoch=1, scores={"train_loss": 0.5, "test_f1": 0.875}).score
        ('test f1', '0.875')
        """
        for split, title in (("test", "test"), ("val", "validation")):
            if not self.scores and (accuracy := self.get(f"{split}_top1")) is not None:
                return f"{title} accuracy", f"{fixed(accuracy, 2)} %"
            for name in self.scores:  # the first one decides
                if name.startswith(f"{split}_"):
                    return name.replace(split, title, 1).replace("_", " ", 1), short(
                        self.scores[name]
                    )
        return None

    @property
    def update_per_lr(self) -> float | None:
        """The update's root mean square divided by the learning rate.

        None where rounding swallows the update, as at the end of a cosine: the update is the
        difference of two float32 parameters, and one of size 0.1 moves by 7e-9 or not at all.
        """
        if not self.lr or self.update_rms is None or self.update_rms < SMALLEST_UPDATE:
            return None
        return self.update_rms / self.lr

    def get(self, metric: str) -> float | None:
        """A metric by its name; None if there is none of this name."""
        found: float | None = self.scores.get(metric, getattr(self, metric, None))
        return found


_LARGEST = 1e100  # squares and sums of it are numbers, too
_COUNTS = ("epoch", "step", "steps")
_NUMBERS = tuple(f.name for f in fields(MetricsRow) if f.name not in (*_COUNTS, "scores"))
_SPLITS = ("train_", "val_", "test_")
_OWN_LOSS = "train_loss"  # in the rows of the user's own problems, and in no others


def _row(values: dict[str, Any], place: int) -> MetricsRow:
    """The row of one line; its place is the epoch where it does not say."""
    own = [name for name in values if name.startswith(_SPLITS)] if _OWN_LOSS in values else []
    found: dict[str, Any] = {name: number(values.get(name)) for name in (*_NUMBERS, *own)}
    for name, value in found.items():
        limit = 100.0 if "_top" in name and name not in own else _LARGEST
        if value is not None and limit < abs(value) < math.inf:
            raise ValueError(f"{name}={value:g} is no measurement; at most {limit:g} is")
    counts = {name: v for name in _COUNTS if isinstance(v := values.get(name), int)}
    scores = {name: value for name in own if (value := found.pop(name, None)) is not None}
    return MetricsRow(**{**found, "scores": scores, "epoch": place, **counts})


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
        data = json_line(row.flat()).encode()
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
