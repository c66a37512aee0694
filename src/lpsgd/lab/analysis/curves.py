"""The learning curve of an optimizer: one metric over training, averaged over its runs.

This is the one definition that the page, the figures and the paper's figures draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from lpsgd.lab.analysis.stats import summarise
from lpsgd.lab.store.run_record import RunRecord


class Point(NamedTuple):
    """The averaged runs at one epoch; ``low`` to ``high`` is the 95 % interval of the mean."""

    epoch: int
    seconds: float
    mean: float
    min: float
    max: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class RunCurve:
    """One run: the epochs at which the metric is finite, and the training time until then."""

    seed: int
    diverged: bool
    epoch: tuple[int, ...]
    seconds: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """``points`` of the averaged runs, and every run: first those averaged, then the diverged."""

    points: tuple[Point, ...]
    runs: tuple[RunCurve, ...]


def averaged(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs that a mean is over: the complete ones or, if there is none, the incomplete.

    A mean over runs of which some diverged or stop early would jump where they drop out.
    """
    complete = [run for run in runs if run.state == "complete"]
    return complete or [run for run in runs if run.state == "incomplete"]


def learning_curve(runs: Sequence[RunRecord], metric: str) -> Curve:
    """The curve of one optimizer's ``runs``: a diverged run is kept apart, never averaged."""
    mine = [_run_curve(run, metric) for run in averaged(runs)]
    apart = [_run_curve(run, metric) for run in runs if run.state == "diverged"]
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for run in mine:
        for epoch, seconds, value in zip(run.epoch, run.seconds, run.y, strict=True):
            by_epoch.setdefault(epoch, []).append((seconds, value))
    points = (_point(epoch, at) for epoch, at in sorted(by_epoch.items()))
    return Curve(tuple(points), tuple(run for run in (*mine, *apart) if run.y))


def final_values(runs: Sequence[RunRecord], metric: str) -> dict[int, float]:
    """The last epoch's value of every complete run, by seed."""
    values = {run.seed: run.last(metric) for run in runs if run.state == "complete"}
    return {seed: v for seed, v in values.items() if v is not None and math.isfinite(v)}


def _point(epoch: int, at: Sequence[tuple[float, float]]) -> Point:
    seconds, values = zip(*at, strict=True)
    interval = summarise(values)
    return Point(
        epoch,
        fmean(seconds),
        fmean(values),
        min(values),
        max(values),
        interval.low,
        interval.high,
        len(values),
    )


def _run_curve(run: RunRecord, metric: str) -> RunCurve:
    clock = accumulate(seconds or 0.0 for seconds in run.values("seconds"))
    rows = zip(run.history, clock, run.values(metric), strict=True)
    points = [
        (row.epoch, seconds, value)
        for row, seconds, value in rows
        if value is not None and math.isfinite(value)
    ]
    epochs, seconds, values = zip(*points, strict=True) if points else ((), (), ())
    return RunCurve(run.seed, run.state == "diverged", epochs, seconds, values)
