"""Fig. 1: the Hessian's eigenvalues over the course of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lpsgd.curvature.monitor import FILE_NAME
from lpsgd.curvature.spectrum import SpectralDensity
from lpsgd.lab.errors import LabError
from lpsgd.lab.paper.protocol import (
    RunGroup,
    Setup,
    begin_document,
    data_title,
    recipe,
    scaled_epoch,
    tasks_for,
)
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.report.document import Cell, Document, Picture, Table, text
from lpsgd.lab.spectra.options import CurvatureOptions
from lpsgd.lab.spectra.records import CurvatureRecord, read_curvature

if TYPE_CHECKING:
    from lpsgd.lab.execution.executor import ExecutorChoice
    from lpsgd.lab.paper.targets import PlannedTarget
    from lpsgd.lab.training.options import RunOptions

# data set and model -> epochs between two measurements
PANELS = {("cifar10", "ResNet-18"): 20, ("imagenet1k", "ResNet-50"): 5}
# what the introduction reads off the figure: largest and smallest eigenvalue early in training
STATED = {"cifar10": (17.5, -2.5), "imagenet1k": (1180.0, -680.0)}
NEAR_ZERO = 0.01
"""Eigenvalues matter from this share of the largest: nearly all lie much closer to zero, and
Lanczos cannot tell their sign."""


def _stored(key: str) -> Callable[[CurvatureRecord], float | None]:
    return lambda record: record["statistics"][key]  # type: ignore[literal-required]


def _bound(side: int) -> Callable[[CurvatureRecord], float | None]:
    return lambda record: SpectralDensity.from_dict(record).share_below(0.0)[side]


def clearly_negative(record: CurvatureRecord) -> float:
    """The share of eigenvalues below -λ_max / 100, by quadrature."""
    theta, omega = SpectralDensity.from_dict(record).merged()
    return float(omega[theta < -NEAR_ZERO * theta[-1]].sum())


# a column of the table -> its value, and how the sentence below the table names and prints it
STATISTICS: Mapping[str, tuple[Callable[[CurvatureRecord], float | None], str, str]] = {
    "smallest": (_stored("lambda_min"), "the smallest eigenvalue", "{:.3g}"),
    "largest": (_stored("lambda_max"), "the largest", "{:.3g}"),
    "below -1 % of the largest": (
        clearly_negative,
        "the share of eigenvalues below -1 % of the largest",
        "{:.2g}",
    ),
    "below 0, at least": (_bound(0), "the share below zero at least", "{:.1%}"),
    "below 0, at most": (_bound(1), "and at most", "{:.1%}"),
    "negative mass": (_stored("negative_mass"), "the part of Σ|λ| below zero", "{:.1%}"),
    "anisotropy": (_stored("anisotropy"), "the spread d·λ_max / Σ|λ|", "{:.3g}"),
}


def plan(setup: Setup) -> list[RunGroup]:
    """One run for each panel; its curvature is measured while it trains."""
    one_seed = replace(setup, seeds=1)
    name = setup.choices["fig1-optimizer"]
    (paper_name,) = (paper for paper, lab in tables.OPTIMIZERS.items() if lab == name)
    return [
        RunGroup(
            dataset,
            model,
            name,
            # in folders of their own: nobody measured the curvature of the tables' runs
            tasks_for(
                recipe(tables.setting(dataset, model, paper_name), setup),
                name,
                one_seed,
                kind=f"curvature-{setup.choices['fig1-batchnorm']}-{_samples(setup)}",
            ),
        )
        for dataset, model in PANELS
        if model in setup.models
    ]


def hessian_images(setup: Setup, groups: Sequence[RunGroup]) -> list[int]:
    """How many images the Hessian products of each run go through."""
    from lpsgd.curvature.monitor import DIAGONAL_PROBES

    products = setup.scale.probes * setup.scale.lanczos + DIAGONAL_PROBES
    # measured before training, at the multiples of the spacing, and at the end
    return [
        products * _samples(setup) * (1 + math.ceil(task.recipe.epochs / _spacing(group, setup)))
        for group in groups
        for task in group.tasks
    ]


def _spacing(group: RunGroup, setup: Setup) -> int:
    return scaled_epoch(PANELS[group.dataset, group.model], group.dataset, setup)


def _samples(setup: Setup) -> int:
    asked: int = setup.choices["fig1-samples"]
    return min(asked, setup.scale.hessian_samples or asked)


def execute(plan: PlannedTarget, run_options: RunOptions, choice: ExecutorChoice) -> None:
    """Train and measure at the asked epochs, one run after the other: each needs much memory."""
    from lpsgd.lab.execution.run import run_tasks

    setup = plan.setup
    for group in plan.groups:
        curvature = CurvatureOptions(
            every=_spacing(group, setup),
            probes=setup.scale.probes,
            lanczos=setup.scale.lanczos,
            samples=_samples(setup),
            batchnorm=setup.choices["fig1-batchnorm"],
        )
        options = replace(run_options, curvature=str(curvature))
        failures = run_tasks(group.tasks, choice, options, title=plan.name)
        if failures:
            raise LabError(failures[0])


def draw(setup: Setup, groups: Sequence[RunGroup]) -> Document:
    """The spectra of both runs, one above the other over epochs, and their extremes."""
    from lpsgd.lab.spectra.figures import evolution_figure

    chosen = setup.choices
    datasets = tuple(group.dataset for group in groups)
    document = begin_document("fig1", "Fig. 1: Hessian eigenvalues over training", datasets, setup)
    document.add(
        text(
            f"Trained with {chosen['fig1-optimizer']} and its row of the tables; the Hessian of "
            f"the training loss over {_samples(setup)} images at most, batch norm in "
            f"{chosen['fig1-batchnorm']} mode, by Lanczos. The paper states none of these."
        )
    )
    rows: list[tuple[Cell, ...]] = []
    nodes: list[tuple[Cell, ...]] = []
    movements: list[str] = []
    for letter, group in zip("ab", groups, strict=False):
        records = spectra(group)
        name = f"{group.model} / {data_title(group.dataset, setup)}"
        epochs = _spacing(group, setup)
        spacing = "epoch" if epochs == 1 else f"{epochs} epochs"
        rows += list(_extremes(name, records))
        nodes += list(_nodes(name, records))
        movements.append(f"{name}, {movement(records)}")
        document.add(
            Picture(
                f"fig1-{letter}",
                f"({letter}) {name}, sampled every {spacing}. The height of a ridge is "
                "the logarithm of the number of eigenvalues there; dots are isolated ones.",
                evolution_figure(records),
            )
        )
    document.add(
        Table(
            "fig1",
            "The extremes of the spectrum",
            ("panel", "epoch", *STATISTICS, "outliers above", "outliers below"),
            rows,
        ),
        text(*movements),
        Table(
            "fig1-spectra",
            "the Lanczos nodes and weights that are drawn",
            ("panel", "epoch", "probe", "eigenvalue", "weight"),
            nodes,
            shown=False,
        ),
    )
    if setup.scale.comparable:
        stated = "; ".join(
            f"{tables.DATASETS[dataset]}: {high:g} and {low:g}"
            for dataset, (high, low) in STATED.items()
            if dataset in datasets
        )
        document.add(text(f"The paper states as examples early in training {stated}."))
    return document


def spectra(group: RunGroup) -> list[CurvatureRecord]:
    """What was measured of the Hessian while a panel's run trained."""
    return list(read_curvature(group.tasks[0].folder / FILE_NAME).values())


def _extremes(panel: str, records: Sequence[CurvatureRecord]) -> Iterator[tuple[Cell, ...]]:
    for record in records:
        numbers = record["statistics"]
        found = (value(record) for value, _, _ in STATISTICS.values())
        outliers = len(numbers["outliers"]), len(numbers["negative_outliers"])
        yield panel, record["epoch"], *found, *outliers


def movement(records: Sequence[CurvatureRecord]) -> str:
    """Each statistic at the first and the last measurement, in words."""
    first, last = records[0], records[-1]
    parts = []
    for value, meaning, form in STATISTICS.values():
        ends = [value(record) for record in (first, last)]
        before, after = ("-" if end is None else form.format(end) for end in ends)
        parts.append(f"{meaning} {before} → {after}")
    return f"epoch {first['epoch']:g} → {last['epoch']:g}: {', '.join(parts)}."


def _nodes(panel: str, records: Sequence[CurvatureRecord]) -> Iterator[tuple[Cell, ...]]:
    for record in records:
        for probe, run in enumerate(zip(record["nodes"], record["weights"], strict=True)):
            for node, weight in zip(*run, strict=True):
                yield panel, record["epoch"], probe, node, weight
