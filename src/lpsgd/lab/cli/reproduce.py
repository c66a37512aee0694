"""``lpsgd reproduce``: the paper's tables, figures, grids, claims and theory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpsgd.lab.cli.options import Root, Workers, with_executor_options
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lpsgd.lab.paper.protocol import Options
    from lpsgd.lab.paper.targets import Target
    from lpsgd.lab.report.document import Document
    from lpsgd.lab.training.loop import RunOptions

NAMES = (
    "table1, table2, table3, fig1, fig2, fig3, fig4, theory, grid, claims, decay, or all of them"
)


@with_executor_options
def reproduce(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help=f"{NAMES}: all.", show_default=False),
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
        int | None, typer.Option(min=1, help="Seeds of each run. [default: 3; smoke 2]")
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
    `all` also gathers them on one page. What was interrupted goes on where it stopped. Scaled
    results are never shown beside the paper's numbers.

    Examples: `lpsgd reproduce --list`, `lpsgd reproduce claims`,
    `lpsgd reproduce table1 --scale cpu --models resnet18`
    """
    from lpsgd.lab.paper.choices import read_choices
    from lpsgd.lab.paper.estimate import check_gpu
    from lpsgd.lab.paper.protocol import Options
    from lpsgd.lab.paper.scales import get_scale, model_names
    from lpsgd.lab.training.loop import RunOptions

    size = get_scale(scale)
    options = Options(
        scale=size,
        choices=read_choices(choose or ()),
        out=out or Path("reproduction") / size.name,
        models=model_names(models),
        seeds=seeds or size.seeds,
    )
    if list_:
        _show_list(options, check_gpu(gpu), timing=timing, as_json=as_json)
        return
    chosen = _targets(target, options)
    if dry_run:
        _show_runs(chosen, options, as_json=as_json)
        return
    _make(
        chosen,
        options,
        RunOptions(root, workers),
        executor,
        everything=target == "all",
        as_json=as_json,
    )


def _targets(name: str | None, options: Options) -> list[Target]:
    from lpsgd._suggest import unknown_name
    from lpsgd.lab.paper.targets import TARGETS, check_models

    if name is None:
        raise UserError(f"TARGET is missing; allowed: {NAMES}: all. See `lpsgd reproduce --list`")
    if name == "all":  # but for those that --models leaves without a run
        return [t for t in TARGETS.values() if not t.datasets or t.plan(options)]
    if name not in TARGETS:
        raise UserError(unknown_name("target", name, [*TARGETS, "all"]))
    check_models(TARGETS[name], options)
    return [TARGETS[name]]


def _make(
    chosen: Sequence[Target],
    options: Options,
    run_options: RunOptions,
    executor: ExecutorChoice,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """Make the targets one after another; `all` goes on past one whose data is missing."""
    from lpsgd.lab.paper import PAPER
    from lpsgd.lab.paper.targets import make
    from lpsgd.lab.plan import write_plan
    from lpsgd.lab.report.document import write
    from lpsgd.lab.report.gather import gather
    from lpsgd.lab.store.run_folder import writing

    for target in chosen:  # before any is made, so that `lpsgd status` knows what is to come
        if tasks := target.plan(options):
            write_plan(options.folder(target.name), tasks)
    documents: list[Document] = []
    missing: list[tuple[str, str]] = []
    files: list[Path] = []
    for target in chosen:
        try:
            document = make(target, options, run_options, executor)
        except UserError as error:
            if not everything:
                raise
            missing.append((target.name, str(error)))
            continue
        documents.append(document)
        with writing(options.out):
            files += write(document, options.folder(target.name))
    if everything:
        title = f"The paper's results at {options.scale.name} scale"
        with writing(options.out):
            files.append(
                gather(documents, options.out, title=title, subtitle=PAPER, missing=missing)
            )
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


def _show_runs(chosen: Sequence[Target], options: Options, *, as_json: bool) -> None:
    from lpsgd.lab.recipe import to_json

    found = [
        {
            "target": target.name,
            "label": task.label,
            "folder": str(task.folder),
            "recipe": to_json(task.recipe),
        }
        for target in chosen
        for task in target.plan(options)
    ]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for run in found:
        typer.echo(f"{run['target']} {run['label']} -> {run['folder']}")
        values: Any = run["recipe"]
        typer.echo("  " + ", ".join(f"{name}={value}" for name, value in values.items()))
    typer.echo(f"{len(found)} runs")


def _show_list(options: Options, gpu: str, *, timing: bool, as_json: bool) -> None:
    from rich.console import Console

    from lpsgd.lab.paper.choices import CHOICES

    rows = [_cost(target, options, gpu, timing=timing) for target in _targets("all", options)]
    if as_json:
        choices = [
            {"name": c.name, "question": c.question, "default": c.default, "allowed": c.allowed}
            for c in CHOICES
        ]
        found = {"scale": options.scale.name, "gpu": gpu, "targets": rows, "choices": choices}
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    console.print(_cost_table(rows, options, gpu))
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


def _cost(target: Target, options: Options, gpu: str, *, timing: bool) -> dict[str, Any]:
    from lpsgd.lab.execution.local import default_jobs
    from lpsgd.lab.paper.estimate import estimate, time_one
    from lpsgd.lab.paper.targets import needs

    tasks = target.plan(options)
    found = estimate(
        tasks,
        options.scale,
        hessian_images=target.hessian_images(options),
        gpu=gpu,
        seconds_per_image=time_one if timing else None,
        jobs=default_jobs(tasks[0]) if tasks and target.name != "fig1" else 1,
    )
    return {
        "target": target.name,
        "title": target.title,
        "needs": needs(target, options),
        "runs": found.runs,
        "flops": found.flops,
        "hours_on_this_machine": found.machine_hours,
        "hours_on_gpu": found.gpu_hours,
    }


def _cost_table(rows: Sequence[dict[str, Any]], options: Options, gpu: str) -> Any:
    from rich.table import Table

    from lpsgd.lab.formatting import duration

    table = Table(box=None, padding=(0, 2, 0, 0), title=f"Targets at {options.scale.name} scale")
    for name, side in (
        ("target", "left"),
        ("what", "left"),
        ("data", "left"),
        ("runs", "right"),
        ("FLOPs", "right"),
        ("this machine", "right"),
        (gpu, "right"),
    ):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
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
