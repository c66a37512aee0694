"""Fig. 2 (SGD against LPSGD) and Fig. 4 (the effect of p_max): accuracy over training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

from lpsgd.lab.analysis.curves import final_values
from lpsgd.lab.analysis.stats import summarise
from lpsgd.lab.errors import UserError
from lpsgd.lab.paper.protocol import (
    RunGroup,
    Setup,
    begin_document,
    by_panel,
    data_title,
    recipe,
    tasks_for,
)
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.paper.tables.published import OURS
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.report.document import Cell, Document, Picture, Table, text
from lpsgd.lab.report.figure import CURVE_COLUMNS, curve_rows, draw_curves
from lpsgd.lab.report.style import BLUE, canvas, label_panels, legend_below, series_styles
from lpsgd.lab.report.widths import TEXT
from lpsgd.lab.store.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIG2 = (("cifar10", "ResNet-18"), ("cifar100", "ResNet-50"))
FIG4 = (("cifar10", "ResNet-18"), ("imagenet1k", "ResNet-50"))
# Fig. 2's final accuracies as the introduction states them: SGD, LPSGD.
FIG2_STATED = {"cifar10": (92.40, 93.05), "cifar100": (68.97, 73.89)}

Panels = Mapping[str, Mapping[str, Sequence[RunRecord]]]
Decorate = Callable[["Axes", str, Mapping[str, tuple[str, Any]]], None]
Recipes = Callable[[str, str, Setup], Iterator[tuple[str, Recipe]]]


def fig2_recipes(dataset: str, model: str, setup: Setup) -> Iterator[tuple[str, Recipe]]:
    """SGD and LPSGD: the tables' rows with momentum and decay 0, and the chosen learning rates."""
    sgd = replace(tables.setting(dataset, model, "SGD w/ Momentum"), weight_decay=0.0, beta1=0.0)
    yield "SGD", recipe(sgd, setup, lr=setup.choices["fig2-sgd-lr"])
    lpsgd = replace(tables.setting(dataset, model, OURS), weight_decay=0.0, beta1=0.0)
    yield "LPSGD", recipe(lpsgd, setup, lr=setup.choices["fig2-lpsgd-lr"])


def fig4_recipes(dataset: str, model: str, setup: Setup) -> Iterator[tuple[str, Recipe]]:
    """LPSGDM's row of the tables with each p_max."""
    for p in setup.choices["fig4-p"]:
        if p < 2:
            raise UserError(f"--choose fig4-p: {p:g} is below 2")
        yield f"p_max = {p:g}", recipe(tables.setting(dataset, model, OURS), setup, p=p)


def plan(recipes: Recipes, panels: Sequence[tuple[str, str]], setup: Setup) -> list[RunGroup]:
    """A group for each line of each panel whose model was asked for."""
    return [
        RunGroup(dataset, model, label, tasks_for(made, label.replace(" ", ""), setup))
        for dataset, model in panels
        if model in setup.models
        for label, made in recipes(dataset, model, setup)
    ]


def draw(name: str, title: str, setup: Setup, groups: Sequence[RunGroup]) -> Document:
    """The curves in the paper's layout, what is drawn, and the final accuracies."""
    scale = setup.scale
    datasets = tuple(dict.fromkeys(group.dataset for group in groups))
    document = begin_document(name, title, datasets, setup)
    panels = by_panel(groups, lambda group: f"{group.model} / {data_title(group.dataset, setup)}")
    document.add(
        Picture(
            name,
            "Test accuracy over training: mean over seeds, band from the lowest to the highest.",
            accuracy_figure(panels),
        ),
        Table(
            f"{name}-final",
            "Test accuracy at the last epoch (%)",
            (
                *("panel", "optimizer", "complete runs", "diverged", "mean", "deviation"),
                *("95 % from", "to"),
            ),
            [(panel, *row) for panel, groups in panels.items() for row in _endings(groups)],
        ),
        Table(
            name,
            "what is drawn",
            CURVE_COLUMNS,
            [r for panel, g in panels.items() for r in curve_rows(panel, g, "test_top1")],
            shown=False,
        ),
    )
    if name == "fig4":
        caption = "Test accuracy at the last epoch: means with their 95 % intervals over seeds."
        document.add(Picture("fig4-final", caption, final_figure(panels)))
    if name == "fig2" and scale.comparable:
        stated = (
            f"{tables.DATASETS[dataset]}: {before:.2f} % (SGD), {after:.2f} % (LPSGD)"
            for dataset, (before, after) in FIG2_STATED.items()
            if dataset in datasets
        )
        document.add(text(f"The paper states {'; '.join(stated)}, without deviations."))
    return document


def _endings(groups: Mapping[str, Sequence[RunRecord]]) -> Iterator[tuple[Cell, ...]]:
    """For each label: complete and diverged runs; mean, deviation and interval at the end."""
    for label, runs in groups.items():
        summary = summarise(list(final_values(runs, "test_top1").values()))
        states = [run.state for run in runs]
        counts = states.count("complete"), states.count("diverged")
        yield label, *counts, summary.mean, summary.sd, summary.low, summary.high


def accuracy_figure(panels: Panels, decorate: Decorate | None = None) -> Figure:
    """Test accuracy over epochs, a panel beside the other; ``decorate`` adds to each."""
    styles = series_styles(next(iter(panels.values())))
    with canvas(TEXT if len(panels) > 1 else TEXT / 2, 2.9) as figure:
        every_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (panel, groups) in zip(every_axes, panels.items(), strict=True):
            draw_curves(axes, groups, "test_top1", styles)
            axes.set_title(_title(panel, len(panels)))
            if decorate is not None:
                decorate(axes, panel, styles)
        every_axes[0].set_ylabel("test accuracy, top-1 (%)")
        if len(panels) > 1:
            label_panels(*every_axes)
        legend_below(figure, every_axes[0])
    return figure


def _title(panel: str, panels: int) -> str:
    """In lines that fit above one of so many panels."""
    return fill(panel, 88 // max(2, panels))


def final_figure(panels: Panels) -> Figure:
    """The last test accuracy of each line of each panel, with its interval."""
    with canvas(TEXT if len(panels) > 1 else TEXT / 2, 2.4) as figure:
        every_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (panel, groups) in zip(every_axes, panels.items(), strict=True):
            for place, runs in enumerate(groups.values()):
                found = summarise(list(final_values(runs, "test_top1").values()))
                if found.low is not None and found.high is not None:
                    axes.plot([place, place], [found.low, found.high], color=BLUE, linewidth=2.5)
                if found.mean is not None:
                    axes.plot([place], [found.mean], "o", color=BLUE, markersize=4)
            axes.set_xticks(range(len(groups)), [label.rpartition(" ")[2] for label in groups])
            axes.set(title=_title(panel, len(panels)), xlabel=next(iter(groups)).partition(" ")[0])
        every_axes[0].set_ylabel("test accuracy, top-1 (%)")
        if len(panels) > 1:
            label_panels(*every_axes)
    return figure
