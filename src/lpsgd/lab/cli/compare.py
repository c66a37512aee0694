"""``lpsgd compare``: several optimizers, several seeds, one honest table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lpsgd.lab.api.compare import DEFAULT_OPTIMIZERS
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
from lpsgd.lab.cli.report import show
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.report.widths import TEXT
from lpsgd.lab.report.widths import figure_width as read_width


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
            f"[default: {','.join(DEFAULT_OPTIMIZERS)}]",
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
    from lpsgd.lab import compare as run_comparison
    from lpsgd.lab.log import logger_names

    width = read_width(figure_width) or (TEXT if figure else None)
    values = given
    if recipes:
        if optimizers is not None or recipe is not None:
            raise UserError("--recipes cannot be combined with --optimizers or --recipe")
    else:
        values = read_values(
            recipe, given, allow_import=allow_import, optimizer=optimizers or "the default ones"
        )
        for name in ("optimizer", "settings", "seed"):
            if values.pop(name, None) is not None:
                print(f"lpsgd: {name} of {recipe} is not used by compare", file=sys.stderr)
    result = run_comparison(
        optimizers or DEFAULT_OPTIMIZERS,
        seeds=seeds,
        reference=reference,
        out=out,
        executor=executor,
        root=root,
        workers=workers,
        save_seconds=save_seconds,
        log=logger_names(log, tensorboard=tensorboard),
        recipes=recipes,
        allow_import=allow_import,
        **values,
    )
    show(result, latex=latex, csv=csv, width=width, as_json=as_json)
    if result.failed:
        raise LabError(result.failed)
    return 0
