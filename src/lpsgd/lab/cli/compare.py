"""``lpsgd compare``: several optimizers, several seeds, one honest table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lpsgd._suggest import unknown_name
from lpsgd.lab.cli.options import (
    RECORDS,
    AllowImport,
    AsJson,
    Csv,
    Figure,
    FigureWidth,
    Latex,
    Log,
    RecipeFile,
    Root,
    SaveSeconds,
    TensorBoard,
    Workers,
    read_values,
    with_executor_options,
    with_recipe_options,
)
from lpsgd.lab.cli.report import report
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.report.widths import figure_width as read_width

DEFAULT_OPTIMIZERS = "sgd,adamw,lion,lpsgdm"


@with_recipe_options(without=("seed",))
@with_executor_options
def compare(
    given: dict[str, Any],
    *,
    optimizers: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Such as sgd,adamw:lr=1e-3,ours=lpsgdm:lr=1e-2,p=6. "
            f"[default: {DEFAULT_OPTIMIZERS}]",
        ),
    ] = None,
    recipes: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Instead of --optimizers: a recipe file, or a folder of them, such as the winners "
            "of a sweep; repeatable.",
            rich_help_panel=RECORDS,
        ),
    ] = None,
    allow_import: AllowImport = False,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=100_000,
            help="Runs of each optimizer; 5 or more for a verdict. [default: 3]",
            show_default=False,
        ),
    ] = 3,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What the others are tested against. [default: the first]"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The comparison's folder.")
    ] = None,
    recipe: RecipeFile = None,
    root: Root = None,
    workers: Workers = 0,
    save_seconds: SaveSeconds = 60.0,
    log: Log = "",
    tensorboard: TensorBoard = False,
    latex: Latex = False,
    csv: Csv = False,
    figure: Figure = False,
    figure_width: FigureWidth = None,
    as_json: AsJson = False,
    executor: ExecutorChoice,
) -> int:
    """Train with several optimizers and seeds, and test which differences are real.

    **Example**: which optimizer suits a small network on real digits?

        lpsgd compare --model mlp --optimizers sgd,adamw,lpsgdm:p=6 --seeds 5 --epochs 20

    Runs that are complete in the folder are not run again; after a stop, the same command resumes.
    """
    from lpsgd.lab.defaults import doubts
    from lpsgd.lab.execution.run import run_tasks
    from lpsgd.lab.labels import labels
    from lpsgd.lab.log import check_loggers, logger_names
    from lpsgd.lab.plan import plan_comparison, plan_recipes, recipe_files
    from lpsgd.lab.store.manifest import write_comparison
    from lpsgd.lab.training.options import RunOptions
    from lpsgd.peers import registry
    from lpsgd.peers.grammar import split_list

    if recipes:
        if optimizers is not None or recipe is not None:
            raise UserError("--recipes cannot be combined with --optimizers or --recipe")
        reference = _reference(reference, list(recipe_files(recipes)))
        folder, tasks = plan_recipes(recipes, given, range(seeds), out, allow_import=allow_import)
    else:
        values = read_values(recipe, given)
        for name in ("optimizer", "settings", "seed"):
            if values.pop(name, None) is not None:
                print(f"lpsgd: {name} of {recipe} is not used by compare", file=sys.stderr)
        text = DEFAULT_OPTIMIZERS if optimizers is None else optimizers
        names = split_list(text, registry.names())
        reference = _reference(reference, labels(names), names)
        source = f"--recipe {recipe}" if recipe else "recipe"
        folder, tasks = plan_comparison(values, names, range(seeds), out, source=source)
        if note := doubts(task.recipe for task in tasks):
            print(f"lpsgd: {note}", file=sys.stderr)
    read_width(figure_width)  # a mistake is told before training
    loggers = logger_names(log, tensorboard=tensorboard)
    check_loggers(loggers)
    write_comparison(folder, tasks, list(dict.fromkeys(task.label for task in tasks)), reference)
    options = RunOptions(root, workers, save_seconds, loggers)
    failures = run_tasks(tasks, executor, options)
    problems = []
    if failures:
        problems.append("\n  ".join([f"{len(failures)} runs failed:", *failures]))
    try:
        report(
            folder,
            latex=latex,
            csv=csv,
            figure=figure,
            figure_width=figure_width,
            as_json=as_json,
        )
    except LabError as error:
        problems.append(str(error))
    if problems:
        raise LabError("\n".join(problems))
    return 0


def _reference(asked: str | None, labels: Sequence[str], optimizers: Sequence[str] = ()) -> str:
    """The label that the others are tested against: the one asked for, else the first.

    It may be spelt as in the table or as in --optimizers.
    """
    if asked in optimizers:
        return labels[optimizers.index(asked)]
    if asked is not None and asked not in labels:
        raise UserError(f"--reference: {unknown_name('label', asked, labels)}")
    return asked or labels[0]
