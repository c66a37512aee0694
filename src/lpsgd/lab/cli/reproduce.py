"""``lpsgd reproduce``: the paper's tables, figures, grids, claims and theory."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpsgd._suggest import unknown_name
from lpsgd.lab.cli.options import (
    RECORDS,
    TRAINING,
    Latex,
    Root,
    Workers,
    flag,
    with_executor_options,
)
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lpsgd.lab.paper.estimate import Shape
    from lpsgd.lab.paper.protocol import Setup
    from lpsgd.lab.paper.targets import PlannedTarget
    from lpsgd.lab.report.document import Document
    from lpsgd.lab.training.options import RunOptions

# Those of `lpsgd.lab.paper.targets`, which takes seconds to load.
NAMES = "table1, table2, table3, fig1, fig2, fig3, fig4, theory, grid, claims, decay"
TARGETS = NAMES.split(", ")


@with_executor_options
def reproduce(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help=f"{NAMES}, or all.", show_default=False),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="paper|cpu|smoke",
            help="As published; hours on two cores; a minute. [default: cpu]",
            show_default=False,
        ),
    ] = "cpu",
    models: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only these networks, such as resnet18,vgg11."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=100_000,
            help="Runs of each setting. [default: 3; smoke 2]",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Answer what the paper leaves open (see --list); repeatable.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For the results. [default: reproduction/SCALE]"),
    ] = None,
    list_: Annotated[
        bool, flag("--list", "Show targets, their cost and the open choices.")
    ] = False,
    no_timing: Annotated[
        bool, flag("--no-timing", "For --list: do not time this machine.", RECORDS)
    ] = False,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For --list: whose hours to estimate. [default: A100]",
            rich_help_panel=RECORDS,
            show_default=False,
        ),
    ] = "A100",
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the settings of every run; train nothing.", RECORDS)
    ] = False,
    root: Root = None,
    workers: Workers = 0,
    latex: Latex = False,
    *,
    executor: ExecutorChoice,
    as_json: Annotated[
        bool, flag("--json", "Print --list, --dry-run or the written files as JSON.", RECORDS)
    ] = False,
) -> None:
    """Regenerate a result of the paper: figures, tables, grids, claims, theory.

    Each target writes its figure (SVG, PNG), the drawn numbers (CSV) and a short text (Markdown);
    `all` also gathers them on one page. An interrupted run resumes where it stopped. Scaled
    results say so, and hold none of the paper's numbers.

    Examples: `lpsgd reproduce --list`, `lpsgd reproduce claims`,
    `lpsgd reproduce table1 --scale cpu --models resnet18`
    """
    from lpsgd.lab.paper.choices import read_choices
    from lpsgd.lab.paper.estimate import check_gpu
    from lpsgd.lab.paper.protocol import Setup
    from lpsgd.lab.paper.scales import get_scale, model_names
    from lpsgd.lab.training.options import RunOptions

    if target is not None and target not in (*TARGETS, "all"):
        raise UserError(unknown_name("target", target, (*TARGETS, "all")))
    size = get_scale(scale)
    setup = Setup(
        scale=size,
        choices=read_choices(choose or ()),
        out=out or Path("reproduction") / size.name,
        models=model_names(models),
        seeds=seeds or size.seeds,
    )
    check_gpu(gpu)

    from lpsgd.lab.paper.targets import plan_all, plan_target

    if list_:
        _show_list(setup, gpu, timing=not no_timing, as_json=as_json)
        return
    if target is None:
        raise UserError(f"TARGET is missing; allowed: {NAMES}, all. See `lpsgd reproduce --list`")
    plans = plan_all(setup) if target == "all" else [plan_target(target, setup)]
    if dry_run:
        _show_runs(plans, as_json=as_json)
        return
    options, everything = RunOptions(root, workers), target == "all"
    _make(plans, setup, options, executor, everything, latex=latex, as_json=as_json)


def _make(
    plans: Sequence[PlannedTarget],
    setup: Setup,
    run_options: RunOptions,
    executor: ExecutorChoice,
    everything: bool,
    *,
    latex: bool,
    as_json: bool,
) -> None:
    """Make the targets one after another; `all` continues past one whose data is missing."""
    from rich.console import Console

    from lpsgd.lab.paper import PAPER_TITLE
    from lpsgd.lab.paper.targets import make
    from lpsgd.lab.report.document import write_document, write_document_page
    from lpsgd.lab.report.document_terminal import print_document
    from lpsgd.lab.report.source import this_command
    from lpsgd.lab.store.disk.files import writing
    from lpsgd.lab.store.manifest import write_plan

    for plan in plans:  # before any is made, so that `lpsgd status` knows what is to come
        if plan.tasks:
            write_plan(plan.folder, plan.tasks)
    documents: list[Document] = []
    missing: list[tuple[str, str]] = []
    files: list[Path] = []
    for plan in plans:
        try:
            document = make(plan, run_options, executor)
        except UserError as error:
            if not everything:
                raise
            missing.append((plan.name, str(error)))
            continue
        documents.append(document)
        if not as_json:
            print_document(document, Console(highlight=False))
        with writing(setup.out):
            files += write_document(document, plan.folder, latex=latex, source=this_command())
    if everything:
        title = f"The paper's results at {setup.scale.name} scale"
        with writing(setup.out):
            page = write_document_page(
                documents, setup.out, title=title, subtitle=PAPER_TITLE, missing=missing
            )
        files.append(page)
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in files]}, indent=2))
    else:
        for path in files:
            if path.suffix in (".md", ".html", ".svg", ".tex", ".toml"):
                typer.echo(f"wrote {path}")
    if missing:
        lines = [f"{name}: {why}" for name, why in missing]
        raise LabError("\n  ".join([f"{len(missing)} targets failed:", *lines]))


# --- --dry-run and --list ----------------------------------------------------------------------


def _show_runs(plans: Sequence[PlannedTarget], *, as_json: bool) -> None:
    from lpsgd.lab.recipe import to_json

    found = [
        {
            "target": plan.name,
            "label": task.label,
            "folder": str(task.folder),
            "recipe": to_json(task.recipe),
        }
        for plan in plans
        for task in plan.tasks
    ]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for run in found:
        typer.echo(f"{run['target']} {run['label']} -> {run['folder']}")
        values: Any = run["recipe"]
        typer.echo("  " + ", ".join(f"{name}={value}" for name, value in values.items()))
    typer.echo(f"{len(found)} runs")


def _show_list(setup: Setup, gpu: str, *, timing: bool, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lpsgd.lab.paper.choices import CHOICES
    from lpsgd.lab.paper.targets import plan_all

    with _timer(timing) as seconds_per_image:
        rows = [_cost(plan, gpu, seconds_per_image) for plan in plan_all(setup)]
    if as_json:
        choices = [
            {"name": c.name, "question": c.question, "default": c.default, "allowed": c.allowed}
            for c in CHOICES
        ]
        found = {"scale": setup.scale.name, "gpu": gpu, "targets": rows, "choices": choices}
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    console.print(_cost_table(rows, setup, gpu))
    console.print(
        "FLOPs: convolutions and linear layers, forward and backward. This machine: estimated from "
        "a short timing, runs side by side on all cores. "
        f"{gpu}: at half of its single-precision peak.",
        style="dim",
        markup=False,
    )
    console.print(f"\nWhat the paper leaves open ({len(CHOICES)} choices, --choose NAME=VALUE):")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for choice in CHOICES:
        name = Text(f"{choice.name}={choice.default}")
        table.add_row(name, Text(f"{choice.question}. Allowed: {choice.allowed}."))
    table.columns[0].no_wrap = True
    console.print(table)


@contextmanager
def _timer(wanted: bool) -> Iterator[Callable[[Shape], float] | None]:
    """How long an image of each network takes here, told while it is timed; None if not wanted."""
    from rich.console import Console

    from lpsgd.lab.paper.estimate import time_one

    if not wanted:
        yield None
        return
    console = Console(stderr=True, highlight=False)
    begin = "timing the networks on this machine"
    if not console.is_terminal:
        console.print(f"{begin} (--no-timing leaves it out)")
    with console.status(begin) as status:

        def time_shown(shape: Shape) -> float:
            status.update(f"{begin}: {shape.model} with {shape.classes} classes")
            return time_one(shape)

        yield time_shown


def _cost(
    plan: PlannedTarget, gpu: str, seconds_per_image: Callable[[Shape], float] | None
) -> dict[str, Any]:
    from lpsgd.lab.execution.local import default_jobs
    from lpsgd.lab.paper.estimate import estimate

    tasks = plan.tasks
    found = estimate(
        tasks,
        plan.setup.scale,
        hessian_images=plan.target.hessian_images(plan.setup, plan.groups),
        gpu=gpu,
        seconds_per_image=seconds_per_image,
        jobs=default_jobs(tasks[0]) if tasks and plan.name != "fig1" else 1,
    )
    return {
        "target": plan.name,
        "title": plan.target.title,
        "needs": plan.needs(),
        "runs": found.runs,
        "flops": found.flops,
        "hours_on_this_machine": found.machine_hours,
        "hours_on_gpu": found.gpu_hours,
    }


def _cost_table(rows: Sequence[dict[str, Any]], setup: Setup, gpu: str) -> Any:
    from rich.table import Table
    from rich.text import Text

    from lpsgd.lab.formatting import duration

    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        title=f"Targets at {setup.scale.name} scale",
        title_justify="left",
    )
    for name in ("target", "what, on which data"):
        table.add_column(name)
    for name in ("runs", "FLOPs", "this machine", gpu):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        hours, runs = row["hours_on_this_machine"], row["runs"]
        table.add_row(
            row["target"],
            Text.assemble(row["title"], *[(f"\n{need}", "dim") for need in row["needs"]]),
            str(runs or ""),
            f"{row['flops']:.2g}" if runs else "",
            "" if hours is None or not runs else duration(3600 * hours),
            duration(3600 * row["hours_on_gpu"]) if runs else "",
        )
    return table
