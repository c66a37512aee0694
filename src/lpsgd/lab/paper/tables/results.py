"""Tables 1 to 3: training NLL and test accuracy at three checkpoints, each model and optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lpsgd.lab.analysis.curves import averaged
from lpsgd.lab.analysis.stats import Summary, summarise
from lpsgd.lab.formatting import best_marks, fixed
from lpsgd.lab.paper.figures.accuracy import accuracy_figure
from lpsgd.lab.paper.protocol import (
    RunGroup,
    Setup,
    begin_document,
    by_panel,
    recipe,
    scaled_epoch,
    tasks_for,
)
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.report.document import Cell, Document, Picture, Table, text
from lpsgd.lab.report.figure import CURVE_COLUMNS, curve_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE_METRICS = {"train_nll": ("Training NLL", 4), "test_top1": ("Testing Top-1 ACC (%)", 2)}
_PLACE = ("model", "optimizer", "metric", "epoch")
WITHIN = 2.0
"""Joint deviations within which a difference is called agreement."""


@dataclass(frozen=True)
class Measurement:
    """One place of the table: what was measured, and the paper's number for it."""

    model: str
    optimizer: str
    metric: str
    epoch: int
    measured: Summary
    paper: tables.Result

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        return None if self.measured.mean is None else self.measured.mean - self.paper.mean

    @property
    def agrees(self) -> bool | None:
        """Whether the difference lies within the joint uncertainty."""
        if self.difference is None or self.measured.sd is None:
            return None
        return abs(self.difference) <= WITHIN * math.hypot(self.measured.sd, self.paper.std)


def plan(dataset: str, setup: Setup) -> list[RunGroup]:
    """A group for each row of the table."""
    return [
        RunGroup(
            dataset,
            row.model,
            row.optimizer,
            tasks_for(recipe(row, setup), tables.OPTIMIZERS[row.optimizer], setup),
        )
        for row in tables.setting_rows()
        if row.dataset == dataset and row.model in setup.models
    ]


def measurements(groups: Sequence[RunGroup], setup: Setup) -> Iterator[Measurement]:
    """Every place of the table."""
    whole = setup.choices["train-nll"] == "whole"
    measured_as = {"train_nll": "train_nll_eval"} if whole else {}
    for group in groups:
        for metric in TABLE_METRICS:
            for epoch in tables.checkpoints(group.dataset):
                values = values_at(group, measured_as.get(metric, metric), epoch, setup)
                place = (group.model, group.label, metric, epoch)
                measured = summarise(list(values.values()))
                yield Measurement(*place, measured, tables.result(group.dataset, *place))


def values_at(group: RunGroup, metric: str, epoch: int, setup: Setup) -> dict[int, float]:
    """By seed, the metric at what corresponds to an epoch of the paper."""
    wanted = scaled_epoch(epoch, group.dataset, setup)
    rows = [(run.seed, row) for run in averaged(group.runs) for row in run.history]
    found = {seed: row.get(metric) for seed, row in rows if row.epoch == wanted}
    return {seed: v for seed, v in found.items() if v is not None and math.isfinite(v)}


def draw(dataset: str, name: str, setup: Setup, groups: Sequence[RunGroup]) -> Document:
    """The table in the paper's layout, the differences where they may be shown, the curves."""
    scale = setup.scale
    found = list(measurements(groups, setup))
    panels = by_panel(groups, lambda group: group.model)
    title = f"Table {name[-1]}: image classification"
    if scale.comparable:
        title += f" on {tables.DATASETS[dataset]}"
    document = begin_document(name, title, (dataset,), setup)
    epochs = [scaled_epoch(epoch, dataset, setup) for epoch in tables.checkpoints(dataset)]
    document.add(
        text(
            f"Mean ± standard deviation over {setup.seeds} seeds at epochs "
            f"{', '.join(map(str, epochs))}; the best of a model's column in bold. Training NLL is "
            + (
                "that of the whole training set in evaluation mode."
                if setup.choices["train-nll"] == "whole"
                else "the mean over the epoch's batches, in training mode."
            )
            + (
                " Learning rates: the best of a search at this length, as many for each optimizer."
                if setup.choices["settings"] == "retuned"
                else ""
            )
        ),
        _layout(name, found, epochs),
    )
    if scale.comparable:
        document.add(_differences(name, found))
    else:
        document.add(_numbers(name, found, dataset, setup))
    document.add(
        Picture(
            name,
            "Test accuracy over training: mean over seeds, band from the lowest to the highest"
            + ("; markers: the paper's values ± deviation." if scale.comparable else "."),
            accuracy_figure(panels, partial(_mark_published, found) if scale.comparable else None),
        ),
        Table(
            f"{name}-curves",
            "what is drawn",
            CURVE_COLUMNS,
            [r for model, g in panels.items() for r in curve_rows(model, g, "test_top1")],
            shown=False,
        ),
    )
    diverged = [run for group in groups for run in group.runs if run.state == "diverged"]
    if diverged:
        document.add(
            text(*(f"Diverged: {run.label} seed {run.seed}: {run.reason}" for run in diverged))
        )
    return document


def _layout(name: str, found: Sequence[Measurement], epochs: Sequence[int]) -> Table:
    columns = ["Model", "Optimizer"]
    for title, _ in TABLE_METRICS.values():
        columns += [f"{title} @{epoch}" for epoch in epochs]
    grouped: dict[tuple[str, str], list[Measurement]] = {}
    for entry in found:
        grouped.setdefault((entry.model, entry.optimizer), []).append(entry)
    rows: list[list[Cell]] = [
        [model, optimizer, *(_cell(entry, found) for entry in row)]
        for (model, optimizer), row in grouped.items()
    ]
    return Table(f"{name}-layout", "In the paper's layout", tuple(columns), rows)


def _column(entry: Measurement) -> tuple[str, str, int]:
    return entry.model, entry.metric, entry.epoch


def _cell(entry: Measurement, found: Sequence[Measurement]) -> str:
    """Mean and deviation, in bold if it is the best of the optimizers in its model's column."""
    digits = TABLE_METRICS[entry.metric][1]
    measured = entry.measured
    if measured.mean is None:
        return "-"
    shown = f"{fixed(measured.mean, digits)} ± {fixed(measured.sd, digits)}"
    column = [e for e in found if _column(e) == _column(entry)]
    means = [e.measured.mean for e in column]
    marks = best_marks(means, digits, higher_is_better=entry.metric == "test_top1")
    return f"**{shown}**" if marks[column.index(entry)] else shown


def _row(entry: Measurement, epoch: int) -> tuple[Cell, ...]:
    measured = entry.measured
    place = entry.model, entry.optimizer, entry.metric, epoch
    return *place, measured.mean, measured.sd, measured.n


def _numbers(name: str, found: Sequence[Measurement], dataset: str, setup: Setup) -> Table:
    return Table(
        name,
        "every number of the table",
        (*_PLACE, "mean", "deviation", "seeds"),
        [_row(e, scaled_epoch(e.epoch, dataset, setup)) for e in found],
        shown=False,
    )


def _differences(name: str, found: Sequence[Measurement]) -> Table:
    judged = [e.agrees for e in found if e.agrees is not None]
    theirs = "paper", "paper's deviation", "difference", "within the joint uncertainty"
    return Table(
        name,
        f"Beside the paper: {sum(judged)} of {len(judged)} numbers differ by at most {WITHIN:g} "
        "joint deviations, sqrt(ours² + theirs²)",
        (*_PLACE, "measured", "deviation", "seeds", *theirs),
        [(*_row(e, e.epoch), e.paper.mean, e.paper.std, e.difference, e.agrees) for e in found],
    )


def _mark_published(
    found: Sequence[Measurement], axes: Axes, model: str, styles: Mapping[str, tuple[str, Any]]
) -> None:
    for entry in (e for e in found if e.model == model and e.metric == "test_top1"):
        colour, _ = styles[entry.optimizer]
        mean, std = entry.paper.mean, entry.paper.std
        axes.errorbar(entry.epoch, mean, std, fmt="D", ms=3, color=colour, capsize=2)
