"""The learning curves of a comparison as a figure for a paper or a README."""

from __future__ import annotations

from pathlib import Path

from lpsgd.lab.analysis import curves
from lpsgd.lab.report.style import TEXT, canvas, save_figure
from lpsgd.lab.store.run_record import Comparison

_PANELS = {"train_nll": "training NLL", "test_top1": "test accuracy (%)"}


def write_figure(comparison: Comparison, stem: Path) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png``: training loss and test accuracy over epochs."""
    groups = {
        label: [run for run in comparison.runs if run.label == label] for label in comparison.labels
    }
    styles = curves.looks(comparison.labels)
    with canvas(TEXT, 2.6) as figure:
        for place, (metric, title) in enumerate(_PANELS.items(), start=1):
            axes = figure.add_subplot(1, len(_PANELS), place)
            curves.draw(axes, groups, metric, styles)
            axes.set_ylabel(title)
            if metric == "train_nll":
                axes.set_yscale("log")
        axes.legend(loc="lower right")
        return save_figure(figure, stem)
