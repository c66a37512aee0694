"""The targets of `lpsgd reproduce`: what each needs, which runs it takes, how it is drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lpsgd.lab.data import data_root
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.paper import claims, grid
from lpsgd.lab.paper.figures import accuracy as accuracy_figures
from lpsgd.lab.paper.figures import fig1
from lpsgd.lab.paper.protocol import RunGroup, Setup, all_tasks, load_runs
from lpsgd.lab.paper.tables import decay
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.paper.tables import results as result_tables
from lpsgd.lab.plan import Task
from lpsgd.lab.report.document import Document, Table
from lpsgd.lab.store.run_record import load_run
from lpsgd.lab.training.options import RunOptions

Planner = Callable[[Setup], list[RunGroup]]
Execution = Callable[["PlannedTarget", RunOptions, ExecutorChoice], None]
Drawer = Callable[[Setup, Sequence[RunGroup]], Document]


def train_all(plan: PlannedTarget, run_options: RunOptions, choice: ExecutorChoice) -> None:
    """Train what is not done yet, several at once; failures are told when the others are done."""
    from lpsgd.lab.execution.run import run_tasks

    # every label's first seed before any second seed, so that early results can be compared
    tasks = sorted(plan.tasks, key=lambda task: task.recipe.seed)
    failures = run_tasks(tasks, choice, run_options, title=plan.name)
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
    plan: Planner = lambda setup: []
    execute: Execution = train_all
    hessian_images: Callable[[Setup, Sequence[RunGroup]], list[int]] = lambda setup, groups: []
    """For each run, how many images go through Hessian products."""


def _table(name: str, dataset: str) -> Target:
    return Target(
        name,
        f"results on {tables.DATASETS[dataset]}",
        (dataset,),
        partial(result_tables.draw, dataset, name),
        partial(result_tables.plan, dataset),
    )


def _figure(
    name: str, title: str, recipes: accuracy_figures.Recipes, panels: tuple[tuple[str, str], ...]
) -> Target:
    return Target(
        name,
        title,
        tuple(dataset for dataset, _ in panels),
        partial(accuracy_figures.draw, name, f"Fig. {name[-1]}: {title}"),
        partial(accuracy_figures.plan, recipes, panels),
    )


def _fig3(setup: Setup, groups: Sequence[RunGroup]) -> Document:
    from lpsgd.lab.paper.figures import fig3

    return fig3.reproduce(setup.out / "fig3")


def _theory(setup: Setup, groups: Sequence[RunGroup]) -> Document:
    from lpsgd.lab.paper.theory import report

    horizons = setup.scale.horizons
    span = f"T from {horizons[0]:,} to {horizons[-1]:,}"
    title = setup.scale.title(f"The theory, measured ({span})")
    return report.reproduce(
        horizons, title, lambda text: print(f"theory: {text}", file=sys.stderr, flush=True)
    )


def _grid(setup: Setup, groups: Sequence[RunGroup]) -> Document:
    keep = setup.choices["grid-lr0"] == "keep"
    return grid.reproduce(setup.out / "grid", keep_zero_lr=keep)


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        _table("table1", "cifar10"),
        _table("table2", "cifar100"),
        _table("table3", "imagenet1k"),
        Target(
            "fig1",
            "Hessian eigenvalues over training",
            tuple(dataset for dataset, _ in fig1.PANELS),
            fig1.draw,
            fig1.plan,
            fig1.execute,
            fig1.hessian_images,
        ),
        _figure("fig2", "SGD against LPSGD", accuracy_figures.fig2_recipes, accuracy_figures.FIG2),
        Target("fig3", "GD and SignGD on the two quadratics, and an interactive page", (), _fig3),
        _figure(
            "fig4", "the effect of p_max", accuracy_figures.fig4_recipes, accuracy_figures.FIG4
        ),
        Target("theory", "lemmas, constants, rates, and where the assumptions fail", (), _theory),
        Target("grid", "the search grids, as a search space for sweeps", (), _grid),
        Target(
            "claims",
            "every number and superlative of the text beside the tables",
            (),
            lambda setup, groups: claims.reproduce(),
        ),
        Target(
            "decay",
            "the hidden decay of the step as p anneals",
            (decay.DATASET,),
            decay.draw,
            decay.plan,
        ),
    )
}


@dataclass(frozen=True)
class PlannedTarget:
    """A target and the runs that it takes: planned once, for everything that is said or done."""

    target: Target
    setup: Setup
    groups: Sequence[RunGroup]

    @property
    def name(self) -> str:
        """The target's name."""
        return self.target.name

    @property
    def folder(self) -> Path:
        """Where the target's figures and tables go."""
        return self.setup.out / self.name

    @property
    def tasks(self) -> list[Task]:
        """Its runs; none where nothing is trained."""
        return all_tasks(self.groups)

    def missing(self) -> list[Task]:
        """The runs that have not ended yet."""
        ended = ("complete", "diverged")
        return [t for t in self.tasks if load_run(t.folder, t.folder).state not in ended]

    def needs(self) -> list[str]:
        """What stands in for the paper's data sets in the runs that --models leaves."""
        used = {group.dataset for group in self.groups}
        stand_ins = self.setup.scale.stand_ins
        return list(dict.fromkeys(stand_ins[d].title for d in self.target.datasets if d in used))


def plan_target(name: str, setup: Setup) -> PlannedTarget:
    """Plan one target; an error if --models leaves it without a run."""
    target = TARGETS[name]
    groups = target.plan(setup)
    if target.datasets and not groups:
        every = target.plan(replace(setup, models=tuple(tables.MODELS)))
        known = ", ".join(dict.fromkeys(tables.MODELS[group.model] for group in every))
        raise UserError(f"--models: {name} has none of them; it has: {known}")
    return PlannedTarget(target, setup, groups)


def plan_all(setup: Setup) -> list[PlannedTarget]:
    """Plan every target but those that --models leaves without a run."""
    plans = [PlannedTarget(target, setup, target.plan(setup)) for target in TARGETS.values()]
    return [plan for plan in plans if plan.groups or not plan.target.datasets]


def make(plan: PlannedTarget, run_options: RunOptions, choice: ExecutorChoice) -> Document:
    """Execute the runs that are missing, load all of them, and draw."""
    _check_imagenet(plan, run_options)
    if plan.groups:
        plan.target.execute(plan, run_options, choice)
    return draw(plan)


def draw(plan: PlannedTarget) -> Document:
    """What the folders of the runs hold, as a document."""
    document = plan.target.draw(plan.setup, load_runs(plan.groups))
    return document.add(_provenance(plan)) if plan.groups else document


def _check_imagenet(plan: PlannedTarget, run_options: RunOptions) -> None:
    """An error that names ImageNet, which a run knows only as a folder of images."""
    needing = [task for task in plan.tasks if task.recipe.dataset == "imagefolder"]
    folder = data_root(run_options.root) / "imagefolder"
    if not needing or all((folder / part).is_dir() for part in ("train", "val")):
        return
    others = {task.recipe.model for task in plan.tasks if task not in needing}
    without = f"lpsgd reproduce {plan.name} --models {','.join(sorted(others))}"
    raise UserError(
        f"{plan.name} needs ImageNet-1K, which is not at {folder}. It is given out at "
        f"https://image-net.org (ILSVRC 2012) after registration. With its train/CLASS/*.JPEG "
        f"and val/CLASS/*.JPEG in one folder: ln -s /that/folder {folder} (or name another "
        "folder of data sets with --root)" + (f". Without it: {without}" if others else "")
    )


def _provenance(plan: PlannedTarget) -> Table:
    """Every run with its settings and folder, so that a number can be traced."""
    rows = [
        (
            f"{task.recipe.model} / {task.recipe.dataset}",
            task.label,
            task.recipe.seed,
            ", ".join(f"{name}={value}" for name, value in task.recipe.settings.items()),
            task.folder.relative_to(plan.setup.out).as_posix(),
        )
        for task in plan.tasks
    ]
    columns = ("network", "label", "seed", "settings", "folder")
    return Table("runs", "the runs behind it", columns, rows, shown=False)
