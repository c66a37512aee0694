"""``lpsgd reproduce``: the paper's tables, figures, grids, claims and theory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpsgd._suggest import unknown_name
from lpsgd.lab.cli.options import Root, Workers, with_executor_options
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        typer.Argument(metavar="TARGET", help=f"{NAMES}, or all of them: all.", show_default=False),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="paper: the published protocol, for GPUs. cpu: at most 3 h for a table on "
            "two cores. smoke: within a minute, on embedded data."
        ),
    ] = "cpu",
    models: Annotated[
        str | None, typer.Option(help="Of tables and figures, only these: resnet18,vgg11.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Seeds of each run. [default: 3; smoke 2]"),
    ] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Another answer to what the paper leaves open; `--list` shows them. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results. [default: reproduction/SCALE]")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show targets, their cost and the open choices.")
    ] = False,
    timing: Annotated[
        bool, typer.Option(help="Time this machine for --list (some seconds).")
    ] = True,
    gpu: Annotated[str, typer.Option(help="The GPU of --list's estimate.")] = "A100",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the full settings of every run; train nothing.")
    ] = False,
    root: Root = None,
    workers: Workers = 0,
    *,
    executor: ExecutorChoice,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print --list, --dry-run or the written files as JSON.")
    ] = False,
) -> None:
    """Regenerate a result of the paper: figures, tables, grids, claims, theory.

    Each target writes its figure (SVG, PNG), the drawn numbers (CSV) and a short text (Markdown);
    `all` also gathers them on one page. An interrupted run resumes where it stopped. Scaled
    results are never shown beside the paper's numbers.

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
        _show_list(setup, gpu, timing=timing, as_json=as_json)
        return
    if target is None:
        raise UserError(f"TARGET is missing; allowed: {NAMES}, all. See `lpsgd reproduce --list`")
    plans = plan_all(setup) if target == "all" else [plan_target(target, setup)]
    if dry_run:
        _show_runs(plans, as_json=as_json)
        return
    _make(plans, setup, RunOptions(root, workers), executor, target == "all", as_json=as_json)


def _make(
    plans: Sequence[PlannedTarget],
    setup: Setup,
    run_options: RunOptions,
    executor: ExecutorChoice,
    everything: bool,
    *,
    as_json: bool,
) -> None:
    """Make the targets one after another; `all` continues past one whose data is missing."""
    from lpsgd.lab.paper import PAPER_TITLE
    from lpsgd.lab.paper.targets import make
    from lpsgd.lab.report.document import write_document, write_document_page
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
        with writing(setup.out):
            files += write_document(document, plan.folder)
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
            if path.suffix in (".md", ".html", ".svg", ".toml"):
                typer.echo(f"wrote {path}")
    if missing:
        lines = [f"{name}: {why}" for name, why in missing]
        raise LabError("\n  ".join([f"{len(missing)} targets were not made:", *lines]))


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

    from lpsgd.lab.paper.choices import CHOICES
    from lpsgd.lab.paper.targets import plan_all

    rows = [_cost(plan, gpu, timing=timing) for plan in plan_all(setup)]
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
        "FLOPs: convolutions and matrix products, forward and backward, counted by torch. This "
        "machine: from a short timing of processor time, runs side by side on all cores. "
        f"{gpu}: at half of its single-precision peak.",
        style="dim",
        markup=False,
    )
    console.print(f"\nWhat the paper leaves open (--choose NAME=VALUE; {len(CHOICES)} choices):")
    for choice in CHOICES:
        console.print(
            f"  {choice.name}={choice.default}: {choice.question}. Allowed: {choice.allowed}.",
            markup=False,
        )


def _cost(plan: PlannedTarget, gpu: str, *, timing: bool) -> dict[str, Any]:
    from lpsgd.lab.execution.local import default_jobs
    from lpsgd.lab.paper.estimate import estimate, time_one

    tasks = plan.tasks
    found = estimate(
        tasks,
        plan.setup.scale,
        hessian_images=plan.target.hessian_images(plan.setup, plan.groups),
        gpu=gpu,
        seconds_per_image=time_one if timing else None,
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

    from lpsgd.lab.formatting import duration

    table = Table(box=None, padding=(0, 2, 0, 0), title=f"Targets at {setup.scale.name} scale")
    for name in ("target", "what", "data"):
        table.add_column(name)
    for name in ("runs", "FLOPs", "this machine", gpu):
        table.add_column(name, justify="right")
    for row in rows:
        hours, runs = row["hours_on_this_machine"], row["runs"]
        table.add_row(
            row["target"],
            row["title"],
            ", ".join(row["needs"]) or "none",
            str(runs or ""),
            f"{row['flops']:.2g}" if runs else "",
            "" if hours is None or not runs else duration(3600 * hours),
            duration(3600 * row["hours_on_gpu"]) if runs else "",
        )
    return table
