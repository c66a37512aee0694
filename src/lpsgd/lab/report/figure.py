"""Learning curves drawn by matplotlib, and the figure of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import MaxNLocator

from lpsgd.lab.analysis.comparison import LABORATORY_METRICS, Analysis
from lpsgd.lab.analysis.curves import learning_curve
from lpsgd.lab.labels import fold
from lpsgd.lab.report.document import Cell
from lpsgd.lab.report.source import comparison_source
from lpsgd.lab.report.style import (
    canvas,
    legend_below,
    literal,
    save_figure,
    series_styles,
)
from lpsgd.lab.report.widths import TEXT
from lpsgd.lab.store.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = Mapping[str, Sequence[RunRecord]]
"""The runs of each optimizer, by its label."""

CURVE_COLUMNS = ("panel", "optimizer", "epoch", "mean", "lowest seed", "highest seed", "seeds")
_LEGEND_WIDTH = 28  # characters
_TWO_PANELS = 4.5  # inches from which two panels are readable side by side
_PANELS = {"train_nll": "training NLL", "test_top1": "test accuracy (%)"}


def write_figure(analysis: Analysis, stem: Path, width: float = TEXT) -> list[Path]:
    """Write ``stem`` as SVG, PNG and PDF: training loss and the metric that decides."""
    return save_figure(
        comparison_figure(analysis, width),
        stem,
        formats=("svg", "png", "pdf"),
        source=comparison_source(analysis),
    )


def comparison_figure(analysis: Analysis, width: float = TEXT) -> Figure:
    """Training loss and the metric that decides over epochs, ``width`` inches wide."""
    groups = {result.label: result.runs for result in analysis.results}
    first = analysis.metrics[0]
    if first in LABORATORY_METRICS:
        return curves_figure(groups, width=width)
    panels = {"train_loss": "training loss", first.key: first.title}
    return curves_figure(groups, panels, width)


def curves_figure(
    groups: Groups, panels: Mapping[str, str] = _PANELS, width: float = TEXT
) -> Figure:
    """The metrics of ``panels`` over epochs, side by side if there is room."""
    across = len(panels) if width >= _TWO_PANELS else 1
    down = len(panels) // across
    with canvas(width, 2.8 if down == 1 else 2.1 * down) as figure:
        for place, (metric, title) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(down, across, place)
            draw_curves(axes, groups, metric, series_styles(groups))
            axes.set_ylabel(title)
            if metric.startswith("train_"):
                axes.set_yscale("log")
            if place <= len(panels) - across:
                axes.set_xlabel("")  # the panel below has the same axis
        legend_below(figure, axes)
    return figure


def draw_curves(
    axes: Axes, groups: Groups, metric: str, styles: Mapping[str, tuple[str, Any]]
) -> None:
    """The mean of each optimizer with a band from the lowest seed to the highest.

    A diverged run is a thin dotted line of its own that ends in a cross.
    """
    for label, runs in groups.items():
        curve = learning_curve(runs, metric)
        colour, dash = styles[label]
        epochs = [point.epoch for point in curve.points]
        low, high = [p.min for p in curve.points], [p.max for p in curve.points]
        axes.fill_between(epochs, low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(
            epochs,
            [point.mean for point in curve.points],
            color=colour,
            ls=dash,
            label=literal(fold(label, _LEGEND_WIDTH)).replace("p_max", r"$p_{\max}$"),
            marker="o" if len(epochs) == 1 else "",
            ms=4,
        )
        for run in curve.runs:
            if run.diverged:
                axes.plot(
                    run.epoch, run.y, color=colour, ls=":", lw=0.8, marker="x", markevery=[-1]
                )
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)


def curve_rows(panel: str, groups: Groups, metric: str) -> Iterator[tuple[Cell, ...]]:
    """The numbers that `draw_curves` draws, as rows under ``CURVE_COLUMNS``."""
    for label, runs in groups.items():
        curve = learning_curve(runs, metric)
        for point in curve.points:
            yield panel, label, point.epoch, point.mean, point.min, point.max, point.n
        for run in curve.runs:
            if run.diverged:
                name = f"{label}, seed {run.seed} (diverged)"
                for epoch, value in zip(run.epoch, run.y, strict=True):
                    yield panel, name, epoch, value, value, value, 1
