"""Learning curves: the mean over seeds with a band from the lowest to the highest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from lpsgd.lab.report.style import DASHES, SERIES
from lpsgd.lab.store.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Look = tuple[str, object]
Row = tuple[str | int | float | None, ...]


@dataclass(frozen=True)
class Line:
    """One metric over epochs: mean, lowest and highest of the seeds that have a value."""

    epochs: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: tuple[int, ...]
    """How many seeds are behind each mean."""


def line(runs: Sequence[RunRecord], metric: str) -> Line:
    """The curve of one label's runs; a diverged run counts until it diverged."""
    by_epoch: dict[int, list[float]] = {}
    for run in runs:
        for row in run.history:
            value = row.get(metric)
            if value is not None and math.isfinite(value):
                by_epoch.setdefault(row.epoch, []).append(value)
    epochs = sorted(by_epoch)
    values = [by_epoch[epoch] for epoch in epochs]
    return Line(
        tuple(epochs),
        tuple(sum(v) / len(v) for v in values),
        tuple(min(v) for v in values),
        tuple(max(v) for v in values),
        tuple(len(v) for v in values),
    )


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """A colour and a dash for each label, the same in every panel of a figure."""
    return {
        label: (SERIES[place % len(SERIES)], DASHES[place % len(DASHES)])
        for place, label in enumerate(labels)
    }


def draw(
    axes: Axes, groups: Mapping[str, Sequence[RunRecord]], metric: str, styles: Mapping[str, Look]
) -> None:
    """One line with its band for each label."""
    for label, runs in groups.items():
        found = line(runs, metric)
        colour, dash = styles[label]
        epochs = np.array(found.epochs)
        axes.fill_between(epochs, found.low, found.high, color=colour, alpha=0.2, lw=0)
        name = label.replace("p_max", r"$p_{\max}$")
        axes.plot(epochs, found.mean, color=colour, ls=dash, label=name)
        if len(epochs) == 1:
            axes.plot(epochs, found.mean, "o", color=colour, ms=4)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)


def rows(panel: str, groups: Mapping[str, Sequence[RunRecord]], metric: str) -> Iterator[Row]:
    """What is drawn, for the CSV: panel, label, epoch, mean, lowest, highest, seeds."""
    for label, runs in groups.items():
        found = line(runs, metric)
        for place, epoch in enumerate(found.epochs):
            numbers = (found.mean[place], found.low[place], found.high[place], found.seeds[place])
            yield (panel, label, epoch, *numbers)


COLUMNS = ("panel", "optimizer", "epoch", "mean", "lowest seed", "highest seed", "seeds")


def endings(groups: Mapping[str, Sequence[RunRecord]], metric: str) -> Iterator[Row]:
    """For each label: complete runs, diverged runs, mean and deviation at the last epoch."""
    from lpsgd.lab.analysis.stats import summarise

    for label, runs in groups.items():
        complete = [run for run in runs if run.state == "complete"]
        values = [value for run in complete if (value := run.last(metric)) is not None]
        summary = summarise(values)
        diverged = sum(run.state == "diverged" for run in runs)
        yield label, len(complete), diverged, summary.mean, summary.sd
