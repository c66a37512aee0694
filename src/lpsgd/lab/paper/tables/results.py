"""Tables 1 to 3: training NLL and test accuracy at three checkpoints, each model and optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lpsgd.lab.analysis.curves import averaged
from lpsgd.lab.analysis.stats import Summary, summarise
from lpsgd.lab.formatting import fixed
from lpsgd.lab.paper.protocol import Options, load, recipe, scaled_epoch, tasks_for
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.plan import Task
from lpsgd.lab.report.document import Cell, Document, Picture, Table, text
from lpsgd.lab.report.figure import CURVE_COLUMNS, curve_rows, draw_curves
from lpsgd.lab.report.style import TEXT, canvas, label_panels, series_styles
from lpsgd.lab.store.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {"train_nll": ("Training NLL", 4), "test_top1": ("Testing Top-1 ACC (%)", 2)}
WITHIN = 2.0
"""Joint deviations within which a difference is called agreement."""


@dataclass(frozen=True)
class Entry:
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
    def joint(self) -> float | None:
        """The deviation of the difference of two single runs, one from each side."""
        return None if self.measured.sd is None else math.hypot(self.measured.sd, self.paper.std)

    @property
    def agrees(self) -> bool | None:
        """Whether the difference lies within the joint uncertainty."""
        if self.difference is None or self.joint is None:
            return None
        return abs(self.difference) <= WITHIN * self.joint


def plan(dataset: str, options: Options) -> list[Task]:
    """The runs of a table."""
    return [
        task
        for row in _rows(dataset, options)
        for task in tasks_for(recipe(row, options), tables.OPTIMIZERS[row.optimizer], options)
    ]


def _rows(dataset: str, options: Options) -> list[tables.Setting]:
    return [r for r in tables.settings() if r.dataset == dataset and r.model in options.models]


def entries(dataset: str, options: Options) -> Iterator[Entry]:
    """Every place of the table, read from the runs' folders."""
    for row in _rows(dataset, options):
        runs = _runs(row, options)
        for metric in METRICS:
            for epoch in tables.checkpoints(dataset):
                values = _values(runs, _measured_as(metric, options), dataset, epoch, options)
                published = tables.result(dataset, row.model, row.optimizer, metric, epoch)
                yield Entry(row.model, row.optimizer, metric, epoch, summarise(values), published)


def _runs(row: tables.Setting, options: Options) -> list[RunRecord]:
    tasks = tasks_for(recipe(row, options), tables.OPTIMIZERS[row.optimizer], options)
    return load(tasks)


def _measured_as(metric: str, options: Options) -> str:
    whole = metric == "train_nll" and options.choices["train-nll"] == "whole"
    return "train_nll_eval" if whole else metric


def _values(
    runs: Sequence[RunRecord], metric: str, dataset: str, epoch: int, options: Options
) -> list[float]:
    wanted = scaled_epoch(epoch, dataset, options)
    found = [
        row.get(metric) for run in averaged(runs) for row in run.history if row.epoch == wanted
    ]
    return [value for value in found if value is not None and math.isfinite(value)]


def draw(dataset: str, name: str, options: Options, tasks: Sequence[Task]) -> Document:
    """The table in the paper's layout, the differences where they may be shown, the curves."""
    scale, number_ = options.scale, name[-1]
    found = list(entries(dataset, options))
    title = f"Table {number_}: image classification"
    if scale.comparable:
        title += f" on {tables.DATASETS[dataset]}"
    document = Document(name, scale.title(title, (dataset,)))
    if not scale.comparable:
        document.add(text(scale.note()))
    epochs = [scaled_epoch(epoch, dataset, options) for epoch in tables.checkpoints(dataset)]
    document.add(
        text(
            f"Mean ± standard deviation over {options.seeds} seeds at epochs "
            f"{', '.join(map(str, epochs))}; the best of a model's column in bold. Training NLL is "
            + (
                "that of the whole training set in evaluation mode."
                if options.choices["train-nll"] == "whole"
                else "the mean over the epoch's batches, in training mode."
            )
        ),
        _layout(name, found, epochs),
    )
    if scale.comparable:
        document.add(*_differences(name, found))
    else:
        document.add(_numbers(name, found, dataset, options))
    document.add(
        Picture(
            name,
            "Test accuracy over training: mean over seeds, band from the lowest to the highest"
            + ("; markers: the paper's values ± deviation." if scale.comparable else "."),
            _figure(dataset, options, found),
        ),
        Table(
            f"{name}-curves",
            "what is drawn",
            CURVE_COLUMNS,
            [
                row
                for model, groups in _by_model(dataset, options).items()
                for row in curve_rows(model, groups, "test_top1")
            ],
            shown=False,
        ),
    )
    diverged = [t for t in load(tasks) if t.state == "diverged"]
    if diverged:
        document.add(
            text(*(f"Diverged: {run.label} seed {run.seed}: {run.reason}" for run in diverged))
        )
    return document


def _layout(name: str, found: Sequence[Entry], epochs: Sequence[int]) -> Table:
    columns = ["Model", "Optimizer"]
    for title, _ in METRICS.values():
        columns += [f"{title} @{epoch}" for epoch in epochs]
    grouped: dict[tuple[str, str], list[Entry]] = {}
    for entry in found:
        grouped.setdefault((entry.model, entry.optimizer), []).append(entry)
    best = {_column(entry): _best(entry, found) for entry in found}
    rows: list[list[Cell]] = [
        [model, optimizer, *(_cell(e, bold=e is best[_column(e)]) for e in row)]
        for (model, optimizer), row in grouped.items()
    ]
    return Table(f"{name}-layout", "In the paper's layout", tuple(columns), rows)


def _column(entry: Entry) -> tuple[str, str, int]:
    return entry.model, entry.metric, entry.epoch


def _best(entry: Entry, found: Sequence[Entry]) -> Entry | None:
    """The best of the optimizers in the entry's column of its model."""
    rivals = [e for e in found if _column(e) == _column(entry) and e.measured.mean is not None]
    sign = 1 if entry.metric == "test_top1" else -1
    return max(rivals, key=lambda e: sign * (e.measured.mean or 0.0), default=None)


def _cell(entry: Entry, *, bold: bool) -> str:
    digits = METRICS[entry.metric][1]
    measured = entry.measured
    if measured.mean is None:
        return "-"
    shown = f"{fixed(measured.mean, digits)} ± {fixed(measured.sd, digits)}"
    return f"**{shown}**" if bold else shown


def _numbers(name: str, found: Sequence[Entry], dataset: str, options: Options) -> Table:
    return Table(
        name,
        "every number of the table",
        ("model", "optimizer", "metric", "epoch", "mean", "deviation", "seeds"),
        [
            (
                e.model,
                e.optimizer,
                e.metric,
                scaled_epoch(e.epoch, dataset, options),
                e.measured.mean,
                e.measured.sd,
                e.measured.n,
            )
            for e in found
        ],
        shown=False,
    )


def _differences(name: str, found: Sequence[Entry]) -> Iterator[Table]:
    judged = [e.agrees for e in found if e.agrees is not None]
    yield Table(
        name,
        f"Beside the paper: {sum(judged)} of {len(judged)} numbers differ by at most {WITHIN:g} "
        "joint deviations, sqrt(ours² + theirs²)",
        (
            "model",
            "optimizer",
            "metric",
            "epoch",
            "measured",
            "deviation",
            "seeds",
            "paper",
            "paper's deviation",
            "difference",
            "within the joint uncertainty",
        ),
        [
            (
                e.model,
                e.optimizer,
                e.metric,
                e.epoch,
                e.measured.mean,
                e.measured.sd,
                e.measured.n,
                e.paper.mean,
                e.paper.std,
                e.difference,
                e.agrees,
            )
            for e in found
        ],
    )


def _by_model(dataset: str, options: Options) -> dict[str, dict[str, list[RunRecord]]]:
    groups: dict[str, dict[str, list[RunRecord]]] = {}
    for row in _rows(dataset, options):
        groups.setdefault(row.model, {})[row.optimizer] = _runs(row, options)
    return groups


def _figure(dataset: str, options: Options, found: Sequence[Entry]) -> Figure:
    by_model = _by_model(dataset, options)
    styles = series_styles(tables.OPTIMIZERS)
    with canvas(TEXT if len(by_model) > 1 else TEXT / 2, 2.7) as figure:
        panels = figure.subplots(1, len(by_model), squeeze=False)[0]
        for axes, (model, groups) in zip(panels, by_model.items(), strict=True):
            draw_curves(axes, groups, "test_top1", styles)
            axes.set_title(model)
            if options.scale.comparable:
                for entry in (e for e in found if e.model == model and e.metric == "test_top1"):
                    colour, _ = styles[entry.optimizer]
                    mean, std = entry.paper.mean, entry.paper.std
                    axes.errorbar(entry.epoch, mean, std, fmt="D", ms=3, color=colour, capsize=2)
        panels[0].set_ylabel("test accuracy, top-1 (%)")
        if len(panels) > 1:
            label_panels(*panels)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, 2 * len(panels)))
    return figure
