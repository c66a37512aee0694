"""The targets of `lpsgd reproduce`: what each needs, which runs it takes, how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lpsgd.lab.data.source import places
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.paper import claims, grid
from lpsgd.lab.paper.figures import accuracy as accuracy_figures
from lpsgd.lab.paper.figures import fig1
from lpsgd.lab.paper.protocol import Options, paired_order
from lpsgd.lab.paper.tables import decay
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.paper.tables import results as result_tables
from lpsgd.lab.plan import Task
from lpsgd.lab.report.document import Document, Table
from lpsgd.lab.training.options import RunOptions

Planner = Callable[[Options], list[Task]]
Drawer = Callable[[Options, Sequence[Task]], Document]
Execution = Callable[[Options, Sequence[Task], RunOptions, ExecutorChoice], None]


def train_all(
    options: Options, tasks: Sequence[Task], run_options: RunOptions, choice: ExecutorChoice
) -> None:
    """Train what is not done yet, several at once; failures are told when the others are done."""
    from lpsgd.lab.execution.run import carry_out

    failures = carry_out(paired_order(tasks), choice, run_options)
    if failures:
        raise LabError("\n  ".join([f"{len(failures)} runs failed:", *failures]))


@dataclass(frozen=True)
class Target:
    """One result of the paper."""

    name: str
    title: str
    datasets: tuple[str, ...]
    """Of the paper, that it trains on; none for what needs no training."""
    draw: Drawer
    plan: Planner = lambda options: []
    execute: Execution = train_all
    hessian_images: Callable[[Options], list[int]] = lambda options: []
    """For each run, how many images go through Hessian products."""


def _table(name: str, dataset: str) -> Target:
    return Target(
        name,
        f"results on {tables.DATASETS[dataset]}",
        (dataset,),
        lambda options, tasks: result_tables.draw(dataset, name, options, tasks),
        partial(result_tables.plan, dataset),
    )


def _figure(
    name: str, title: str, recipes: accuracy_figures.Recipes, panels: tuple[tuple[str, str], ...]
) -> Target:
    full_title = f"Fig. {name[-1]}: {title}"
    return Target(
        name,
        title,
        tuple(dataset for dataset, _ in panels),
        lambda options, tasks: accuracy_figures.draw(name, full_title, recipes, panels, options),
        partial(accuracy_figures.plan, recipes, panels),
    )


def _fig3(options: Options, tasks: Sequence[Task]) -> Document:
    from lpsgd.lab.paper.figures import fig3

    return fig3.reproduce(options.folder("fig3"))


def _theory(options: Options, tasks: Sequence[Task]) -> Document:
    from lpsgd.lab.paper.theory import report

    horizons = options.scale.horizons
    span = f"T from {horizons[0]:,} to {horizons[-1]:,}"
    return report.reproduce(horizons, options.scale.title(f"The theory, measured ({span})"))


def _grid(options: Options, tasks: Sequence[Task]) -> Document:
    keep = options.choices["grid-lr0"] == "keep"
    return grid.reproduce(options.folder("grid"), keep_zero_lr=keep)


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        _table("table1", "cifar10"),
        _table("table2", "cifar100"),
        _table("table3", "imagenet1k"),
        Target(
            "fig1",
            "Hessian eigenvalues over training",
            tuple(dataset for dataset, _, _ in fig1.PANELS),
            fig1.draw,
            fig1.plan,
            fig1.execute,
            fig1.hessian_images,
        ),
        _figure("fig2", "SGD against LPSGD", accuracy_figures.fig2_recipes, accuracy_figures.FIG2),
        Target("fig3", "GD and SignGD on the two quadratics, and a page to play with", (), _fig3),
        _figure(
            "fig4", "the effect of p_max", accuracy_figures.fig4_recipes, accuracy_figures.FIG4
        ),
        Target("theory", "lemmas, constants, rates, and where the assumptions fail", (), _theory),
        Target("grid", "the search grids, as a search space for sweeps", (), _grid),
        Target(
            "claims",
            "every number and superlative of the text beside the tables",
            (),
            lambda options, tasks: claims.reproduce(),
        ),
        Target(
            "decay",
            "the hidden decay of the step as p anneals",
            (decay.DATASET,),
            lambda options, tasks: decay.draw(options),
            decay.plan,
        ),
    )
}


def make(
    target: Target, options: Options, run_options: RunOptions, choice: ExecutorChoice
) -> Document:
    """Train what is missing, then draw."""
    tasks = target.plan(options)
    if tasks:
        _check_imagenet(target, tasks, run_options)
        target.execute(options, tasks, run_options, choice)
    document = target.draw(options, tasks)
    if tasks:
        document.add(_provenance(options, tasks))
    return document


def _check_imagenet(target: Target, tasks: Sequence[Task], run_options: RunOptions) -> None:
    """An error that names ImageNet, which a run knows only as a folder of images."""
    if all(task.recipe.dataset != "imagefolder" for task in tasks):
        return
    folder = places.root(run_options.root) / "imagefolder"
    if not all((folder / part).is_dir() for part in ("train", "val")):
        raise UserError(
            f"{target.name} needs ImageNet-1K, which is not at {folder}. It is given out at "
            f"https://image-net.org (ILSVRC 2012) after registration. With its train/CLASS/*.JPEG "
            f"and val/CLASS/*.JPEG in one folder: ln -s /that/folder {folder} (or name another "
            "folder of data sets with --root)" + _without_imagenet(target, tasks)
        )


def _without_imagenet(target: Target, tasks: Sequence[Task]) -> str:
    others = {task.recipe.model for task in tasks if task.recipe.dataset != "imagefolder"}
    if not others:
        return ""
    return f". Without it: lpsgd reproduce {target.name} --models {','.join(sorted(others))}"


def _provenance(options: Options, tasks: Sequence[Task]) -> Table:
    """Every run with its settings and folder, so that a number can be traced."""
    rows = [
        (
            f"{task.recipe.model} / {task.recipe.dataset}",
            task.label,
            task.recipe.seed,
            ", ".join(f"{name}={value}" for name, value in task.recipe.settings.items()),
            task.folder.relative_to(options.out).as_posix(),
        )
        for task in tasks
    ]
    return Table(
        "runs",
        "the runs behind it",
        ("network", "label", "seed", "settings", "folder"),
        rows,
        shown=False,
    )


def needs(target: Target, options: Options) -> list[str]:
    """What stands in for the paper's data sets in the runs that --models leaves."""
    used = {task.recipe.dataset for task in target.plan(options)}
    found = (options.scale.places[dataset] for dataset in target.datasets)
    return list(dict.fromkeys(place.title for place in found if place.dataset in used))


def check_models(target: Target, options: Options) -> None:
    """An error if --models leaves a target without a run."""
    if target.datasets and not target.plan(options):
        every = target.plan(replace(options, models=tuple(tables.MODELS)))
        known = ", ".join(dict.fromkeys(task.recipe.model for task in every))
        raise UserError(f"--models: {target.name} has none of them; it has: {known}")
