"""How annealing p shrinks the step, and what is left of the effect when the step is kept long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lpsgd.lab.analysis.curves import final_values, learning_curve
from lpsgd.lab.analysis.stats import summarise
from lpsgd.lab.paper.protocol import RunGroup, Setup, begin_document, recipe, tasks_for
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.report.document import Cell, Document, Picture, Table, text
from lpsgd.lab.report.figure import CURVE_COLUMNS, curve_rows, draw_curves
from lpsgd.lab.report.style import canvas, label_panels, legend_below, series_styles
from lpsgd.lab.report.widths import TEXT
from lpsgd.lab.store.run_record import RunRecord
from lpsgd.peers import registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATASET, MODEL = "cifar10", "ResNet-18"
LABELS = {
    "paper": "the paper's LPSGDM: no factor",
    "whole-factor": "factor over all parameters (the paper's equation before it drops it)",
    "dual": 'normalize="dual": factor per tensor',
    "rms": 'normalize="rms": every tensor\'s step equally long',
    "constant-p": "p stays at p_max",
}

Versions = Mapping[str, Sequence[RunRecord]]


def recipes(setup: Setup) -> Iterator[tuple[str, Recipe]]:
    """One run in five versions; without weight decay, which would add its own part to the step."""
    row = replace(tables.setting(DATASET, MODEL, tables.OURS), weight_decay=0.0)
    paper = recipe(row, setup)
    yield "paper", paper
    for label, length in (("whole-factor", "whole"), ("dual", "dual"), ("rms", "rms")):
        yield label, _matched(paper, length, setup)
    constant = registry.complete_settings("lpsgdm", {**_rule(paper), "p_schedule": "constant"})
    yield "constant-p", paper.with_changes(optimizer="lpsgdm", settings=constant)


def _rule(paper: Recipe) -> dict[str, Any]:
    """The settings that every version has, however its p and its length are made."""
    return {name: paper.settings[name] for name in ("lr", "momentum", "p", "weight_decay", "eps")}


def _matched(paper: Recipe, length: str, setup: Setup) -> Recipe:
    from lpsgd.lab.paper.variants import MATCHED

    steps = setup.scale.stand_ins[DATASET].train // paper.batch_size
    horizon = {"total_epochs": paper.epochs, "steps_per_epoch": steps}
    if "held_epochs" in paper.settings:  # of --choose p-cosine=after-warmup
        horizon["held_epochs"] = paper.settings["held_epochs"]
    settings = {**_rule(paper), "length": length, **horizon}
    return paper.with_changes(optimizer=MATCHED, settings=settings)


def plan(setup: Setup) -> list[RunGroup]:
    """A group for each of the five versions."""
    return [
        RunGroup(DATASET, MODEL, label, tasks_for(made, label, setup))
        for label, made in recipes(setup)
    ]


def draw(setup: Setup, groups: Sequence[RunGroup]) -> Document:
    """The size of the step over training, with and without the learning-rate schedule; accuracy."""
    title = "The hidden decay: how the step shrinks as p anneals"
    document = begin_document("decay", title, (DATASET,), setup)
    versions = {group.label: group.runs for group in groups}
    document.add(
        text(
            "The paper drops the factor ||g||_q^ρ of its steepest-descent step into the learning "
            "rate. But that factor depends on p: with |g| near 1e-3, |u| = |g|^(1/(p-1)) goes from "
            "0.25 at p = 6 to 1e-3 at p = 2, so that annealing p is also a decay of the step. Here "
            f"is one run ({MODEL}, LPSGDM's row of the tables without weight decay) in five "
            "versions whose first steps are equally long:"
        ),
        text(*(f"{label}: {meaning}" for label, meaning in LABELS.items())),
        text(
            "The factor over all parameters is about (d^(1/q) |m|)^ρ for d parameters of size |m|: "
            "where that is above 1 it adds to the decay, since it is 1 at p = 2."
        ),
        Picture(
            "decay",
            "(a) Root mean square of the update at the end of each epoch. (b) The same divided by "
            "the learning rate, which leaves what the rule itself does, as long as float32 "
            "resolves the update. (c) Test accuracy. Mean over seeds, band from the lowest to the "
            "highest.",
            _figure(versions),
        ),
        Table(
            "decay-summary",
            "Size of the step per learning rate at the first epoch and at the last at which "
            "float32 resolves it, and where accuracy ends",
            (
                *("version", "first", "last", "of epoch", "shrinks by"),
                *("final test accuracy (%)", "deviation"),
            ),
            list(summary_rows(versions)),
        ),
        Table(
            "decay",
            "what is drawn",
            CURVE_COLUMNS,
            [
                row
                for metric in ("update_rms", "update_per_lr", "test_top1")
                for row in curve_rows(metric, versions, metric)
            ],
            shown=False,
        ),
    )
    return document


def summary_rows(versions: Versions) -> Iterator[tuple[Cell, ...]]:
    """For each version its step per lr at both ends, their ratio, and where accuracy ends."""
    for label, runs in versions.items():
        accuracy = summarise(list(final_values(runs, "test_top1").values()))
        sizes: tuple[Cell, ...] = None, None, None, None
        if points := learning_curve(runs, "update_per_lr").points:
            first, last = points[0], points[-1]
            sizes = first.mean, last.mean, last.epoch, first.mean / last.mean
        yield label, *sizes, accuracy.mean, accuracy.sd


def _figure(versions: Versions) -> Figure:
    styles = series_styles(versions)
    with canvas(TEXT, 2.9) as figure:
        size, per_lr, accuracy = figure.subplots(1, 3)
        for axes, metric, title, label in (
            (size, "update_rms", "step", "RMS of the update"),
            (per_lr, "update_per_lr", "step / learning rate", "RMS of the update / lr"),
            (accuracy, "test_top1", "accuracy", "test accuracy, top-1 (%)"),
        ):
            draw_curves(axes, versions, metric, styles)
            axes.set(title=title, ylabel=label)
        size.set_yscale("log")
        per_lr.set_yscale("log")
        label_panels(size, per_lr, accuracy)
        legend_below(figure, size)
    return figure
