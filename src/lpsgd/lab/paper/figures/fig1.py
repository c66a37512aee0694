"""Fig. 1: the Hessian's eigenvalues over the course of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lpsgd.lab.errors import LabError
from lpsgd.lab.paper.protocol import (
    Options,
    chosen_panels,
    recipe,
    scaled_epoch,
    tasks_for,
)
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.plan import Task
from lpsgd.lab.report.document import Cell, Document, Picture, Table, text

if TYPE_CHECKING:
    from lpsgd.lab.execution.executor import ExecutorChoice
    from lpsgd.lab.training.options import RunOptions

# data set, model, epochs between two measurements
PANELS = (("cifar10", "ResNet-18", 20), ("imagenet1k", "ResNet-50", 5))
# what the introduction reads off the figure: largest and smallest eigenvalue early in training
STATED = {"cifar10": (17.5, -2.5), "imagenet1k": (1180.0, -680.0)}


def plan(options: Options) -> list[Task]:
    """One run for each panel; its curvature is measured while it trains."""
    return [_task(dataset, model, options) for dataset, model, _ in chosen_panels(PANELS, options)]


def hessian_images(options: Options) -> list[int]:
    """How many images the Hessian products of each run go through."""
    from lpsgd.curvature.monitor import DIAGONAL_PROBES

    products = options.scale.probes * options.scale.lanczos + DIAGONAL_PROBES
    images = products * _samples(options)
    return [
        images * _measurements(task.recipe.epochs, scaled_epoch(every, dataset, options))
        for task, (dataset, _, every) in zip(
            plan(options), chosen_panels(PANELS, options), strict=True
        )
    ]


def _measurements(epochs: int, every: int) -> int:
    """Before training, at the multiples of ``every``, and at the end."""
    return 1 + -(-epochs // every)


def _task(dataset: str, model: str, options: Options) -> Task:
    by_name = {lab: paper for paper, lab in tables.OPTIMIZERS.items()}
    name = options.choices["fig1-optimizer"]
    made = recipe(tables.setting(dataset, model, by_name[name]), options)
    # apart from the runs of the tables, which nobody measured
    (task,) = tasks_for(made, name, replace(options, seeds=1), kind=_kind(options))
    return task


def _kind(options: Options) -> str:
    return f"curvature-{options.choices['fig1-batchnorm']}-{_samples(options)}"


def _samples(options: Options) -> int:
    asked: int = options.choices["fig1-samples"]
    return min(asked, options.scale.hessian_samples or asked)


def execute(
    options: Options, tasks: Sequence[Task], run_options: RunOptions, choice: ExecutorChoice
) -> None:
    """Train and measure at the asked epochs, one run after the other: each needs much memory."""
    from lpsgd.lab.execution.run import carry_out

    for task, (dataset, _, every) in zip(tasks, chosen_panels(PANELS, options), strict=True):
        asked = {
            "every": scaled_epoch(every, dataset, options),
            "probes": options.scale.probes,
            "lanczos": options.scale.lanczos,
            "samples": _samples(options),
            "batchnorm": options.choices["fig1-batchnorm"],
        }
        text = ",".join(f"{name}={value}" for name, value in asked.items())
        failures = carry_out([task], choice, replace(run_options, curvature=text))
        if failures:
            raise LabError(failures[0])


def draw(options: Options, tasks: Sequence[Task]) -> Document:
    """The spectra of both runs, one above the other over epochs, and their extremes."""
    from lpsgd.curvature import read_records
    from lpsgd.lab.spectra.figures import evolution_figure

    scale, chosen = options.scale, options.choices
    panels = chosen_panels(PANELS, options)
    datasets = tuple(dataset for dataset, _, _ in panels)
    title = "Fig. 1: Hessian eigenvalues over training"
    document = Document("fig1", scale.title(title, datasets))
    if not scale.comparable:
        document.add(text(scale.note()))
    document.add(
        text(
            f"Trained with {chosen['fig1-optimizer']} and its row of the tables; the Hessian of "
            f"the training loss over {_samples(options)} images at most, batch norm in "
            f"{chosen['fig1-batchnorm']} mode, by Lanczos. The paper names none of these."
        )
    )
    rows: list[tuple[Cell, ...]] = []
    nodes: list[tuple[Cell, ...]] = []
    for letter, task, (dataset, model, every) in zip("ab", tasks, panels, strict=False):
        records = read_records(task.folder / "curvature.jsonl")
        name = f"{model} / " + (
            tables.DATASETS[dataset] if scale.comparable else scale.places[dataset].title
        )
        rows += list(_extremes(name, records))
        nodes += list(_nodes(name, records))
        spacing = scaled_epoch(every, dataset, options)
        document.add(
            Picture(
                f"fig1-{letter}",
                f"({letter}) {name}, sampled every {_epochs(spacing)}. The height of a ridge is "
                "the logarithm of the number of eigenvalues there; dots are isolated ones.",
                evolution_figure(records),
            )
        )
    document.add(
        Table(
            "fig1",
            "The extremes of the spectrum",
            ("panel", "epoch", "smallest", "largest", "outliers above", "outliers below"),
            rows,
        ),
        Table(
            "fig1-spectra",
            "the Lanczos nodes and weights that are drawn",
            ("panel", "epoch", "probe", "eigenvalue", "weight"),
            nodes,
            shown=False,
        ),
    )
    if scale.comparable:
        stated = "; ".join(
            f"{tables.DATASETS[dataset]}: {high:g} and {low:g}"
            for dataset, (high, low) in STATED.items()
            if dataset in datasets
        )
        document.add(text(f"The paper states as examples early in training {stated}."))
    return document


def _epochs(count: int) -> str:
    return "epoch" if count == 1 else f"{count} epochs"


def _extremes(panel: str, records: Sequence[dict[str, Any]]) -> Iterator[tuple[Cell, ...]]:
    for record in records:
        numbers = record["statistics"]
        above, below = len(numbers["outliers"]), len(numbers["negative_outliers"])
        yield (
            panel,
            record["epoch"],
            numbers["lambda_min"],
            numbers["lambda_max"],
            above,
            below,
        )


def _nodes(panel: str, records: Sequence[dict[str, Any]]) -> Iterator[tuple[Cell, ...]]:
    for record in records:
        for probe, run in enumerate(zip(record["nodes"], record["weights"], strict=True)):
            for node, weight in zip(*run, strict=True):
                yield panel, record["epoch"], probe, node, weight
