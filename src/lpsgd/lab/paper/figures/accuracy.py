"""Fig. 2 (SGD against LPSGD) and Fig. 4 (the effect of p_max): accuracy over training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lpsgd.lab.analysis.curves import final_values
from lpsgd.lab.analysis.stats import summarise
from lpsgd.lab.errors import UserError
from lpsgd.lab.paper.protocol import Options, chosen_panels, load, recipe, tasks_for
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.paper.tables.published import OURS
from lpsgd.lab.plan import Task
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.report.document import Cell, Document, Picture, Table, text
from lpsgd.lab.report.figure import CURVE_COLUMNS, curve_rows, draw_curves
from lpsgd.lab.report.style import TEXT, canvas, label_panels, series_styles
from lpsgd.lab.store.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIG2 = (("cifar10", "ResNet-18"), ("cifar100", "ResNet-50"))
FIG4 = (("cifar10", "ResNet-18"), ("imagenet1k", "ResNet-50"))
# Fig. 2's final accuracies as the introduction states them: SGD, LPSGD.
FIG2_STATED = {"cifar10": (92.40, 93.05), "cifar100": (68.97, 73.89)}

Recipes = Callable[[str, str, Options], Iterator[tuple[str, Recipe]]]


def fig2_recipes(dataset: str, model: str, options: Options) -> Iterator[tuple[str, Recipe]]:
    """SGD and LPSGD: the tables' rows with momentum and decay 0, and the chosen learning rates."""
    sgd = replace(tables.setting(dataset, model, "SGD w/ Momentum"), weight_decay=0.0, beta1=0.0)
    yield "SGD", recipe(sgd, options, lr=options.choices["fig2-sgd-lr"])
    lpsgd = replace(tables.setting(dataset, model, OURS), weight_decay=0.0, beta1=0.0)
    yield "LPSGD", recipe(lpsgd, options, lr=options.choices["fig2-lpsgd-lr"])


def fig4_recipes(dataset: str, model: str, options: Options) -> Iterator[tuple[str, Recipe]]:
    """LPSGDM's row of the tables with each p_max."""
    for p in options.choices["fig4-p"]:
        if p < 2:
            raise UserError(f"--choose fig4-p: {p:g} is below 2")
        yield f"p_max = {p:g}", recipe(tables.setting(dataset, model, OURS), options, p=p)


def plan(recipes: Recipes, panels: Sequence[tuple[str, str]], options: Options) -> list[Task]:
    """The runs of a figure."""
    return [
        task
        for panel in chosen_panels(panels, options)
        for group in _tasks(recipes, *panel, options)
        for task in group
    ]


def _tasks(recipes: Recipes, dataset: str, model: str, options: Options) -> list[list[Task]]:
    return [
        tasks_for(made, label.replace(" ", ""), options)
        for label, made in recipes(dataset, model, options)
    ]


def _groups(
    recipes: Recipes, dataset: str, model: str, options: Options
) -> dict[str, list[RunRecord]]:
    labels = [label for label, _ in recipes(dataset, model, options)]
    tasks = _tasks(recipes, dataset, model, options)
    return {label: load(group) for label, group in zip(labels, tasks, strict=True)}


def draw(
    name: str, title: str, recipes: Recipes, panels: Sequence[tuple[str, str]], options: Options
) -> Document:
    """The curves in the paper's layout, what is drawn, and the final accuracies."""
    scale, panels = options.scale, chosen_panels(panels, options)
    document = Document(name, scale.title(title, tuple(dataset for dataset, _ in panels)))
    if not scale.comparable:
        document.add(text(scale.note()))
    found = {
        _name(dataset, model, options): _groups(recipes, dataset, model, options)
        for dataset, model in panels
    }
    document.add(
        Picture(
            name,
            "Test accuracy over training: mean over seeds, band from the lowest to the highest.",
            _figure(found),
        ),
        Table(
            f"{name}-final",
            "Test accuracy at the last epoch (%)",
            ("panel", "optimizer", "complete runs", "diverged", "mean", "deviation"),
            [(panel, *row) for panel, groups in found.items() for row in _endings(groups)],
        ),
        Table(
            name,
            "what is drawn",
            CURVE_COLUMNS,
            [r for panel, g in found.items() for r in curve_rows(panel, g, "test_top1")],
            shown=False,
        ),
    )
    if name == "fig2" and scale.comparable:
        stated = (
            f"{tables.DATASETS[dataset]}: {before:.2f} % (SGD), {after:.2f} % (LPSGD)"
            for dataset, (before, after) in FIG2_STATED.items()
            if dataset in dict(panels)
        )
        document.add(text(f"The paper states {'; '.join(stated)}, without deviations."))
    return document


def _endings(groups: Mapping[str, Sequence[RunRecord]]) -> Iterator[tuple[Cell, ...]]:
    """For each label: complete runs, diverged runs, mean and deviation at the last epoch."""
    for label, runs in groups.items():
        summary = summarise(list(final_values(runs, "test_top1").values()))
        states = [run.state for run in runs]
        counts = states.count("complete"), states.count("diverged")
        yield label, *counts, summary.mean, summary.sd


def _name(dataset: str, model: str, options: Options) -> str:
    scale = options.scale
    data = tables.DATASETS[dataset] if scale.comparable else scale.places[dataset].title
    return f"{model} / {data}"


def _figure(found: dict[str, dict[str, list[RunRecord]]]) -> Figure:
    styles = series_styles(next(iter(found.values())))
    with canvas(TEXT if len(found) > 1 else TEXT / 2, 2.9) as figure:
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, (panel, groups) in zip(panels, found.items(), strict=True):
            draw_curves(axes, groups, "test_top1", styles)
            axes.set_title(panel)
        panels[0].set_ylabel("test accuracy, top-1 (%)")
        if len(panels) > 1:
            label_panels(*panels)
        handles, labels = panels[0].get_legend_handles_labels()
        columns = 5 if len(panels) > 1 else 2
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    return figure
