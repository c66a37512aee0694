"""``lpsgd sweep``: search every optimizer's settings with equal budgets, on validation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpsgd.lab.cli.options import (
    EXECUTION,
    SEARCH,
    AllowImport,
    AsJson,
    FigureWidth,
    Latex,
    RecipeFile,
    Root,
    SaveSeconds,
    Workers,
    read_values,
    with_executor_options,
    with_recipe_options,
)
from lpsgd.lab.errors import LabError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.report.widths import figure_width as read_width
from lpsgd.lab.report.widths import fitting

if TYPE_CHECKING:
    from lpsgd.lab.search.outcome import Outcome


@with_recipe_options(without=("seed",), defaults={"val_size": "a fifth of it"})
@with_executor_options
def sweep(
    given: dict[str, Any],
    *,
    space: Annotated[
        str,
        typer.Option(metavar="FILE", help="What to search; `paper` takes the paper's grids."),
    ],
    optimizers: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only these of the space, such as sgd,lpsgdm."),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            metavar="grid|tpe|random",
            help="How trials are chosen. [default: grid]",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ] = "grid",
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=100_000,
            help="Of each optimizer. [default: the smallest grid, else 20]",
        ),
    ] = None,
    pruner: Annotated[
        str,
        typer.Option(
            metavar="none|median|halving",
            help="Stop poor trials early. [default: none]",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ] = "none",
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="top1|nll",
            help="Validation score to choose by. [default: top1]",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    round_size: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Trials between two decisions of sampler and pruner. [default: 4]",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ] = 4,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=2**32 - 1,
            help="Of the search.",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ] = 0,
    train_seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=2**30,
            help="Of weights, batches and validation split. [default: 1000]",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ] = 1000,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=100_000,
            help="Runs of a trial, whose mean counts. [default: 1]",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            envvar="LPSGD_STORAGE",
            show_default=False,
            metavar="URL",
            help="Share the trials: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
            rich_help_panel=EXECUTION,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The sweep's folder.")] = None,
    recipe: RecipeFile = None,
    allow_import: AllowImport = False,
    root: Root = None,
    workers: Workers = 0,
    save_seconds: SaveSeconds = 60.0,
    latex: Latex = False,
    figure_width: FigureWidth = None,
    as_json: AsJson = False,
    executor: ExecutorChoice,
) -> int:
    """Search the settings of several optimizers, with the same number of trials for each.

    Trials are scored on a part of the training set that is held out (`--val-size`, a fifth by
    default); the test set is not used.

    **Example**: twelve trials of each of the paper's optimizers, then a comparison of the winners

        lpsgd sweep --space paper --trials 12 --model mlp --epochs 10 --out runs/search
        lpsgd compare --recipes runs/search/winners --seeds 5

    After a stop, the same command resumes. Processes that are given one `--storage` share the
    trials.
    """
    from lpsgd.lab import sweep as search

    with fitting(read_width(figure_width)):
        result = search(
            space,
            only=[part.strip() for part in optimizers.split(",")] if optimizers else None,
            sampler=sampler,
            trials=trials,
            pruner=pruner,
            metric=metric,
            round_size=round_size,
            train_seed=train_seed,
            seed=seed,
            seeds=seeds,
            storage=storage,
            out=out,
            executor=executor,
            root=root,
            workers=workers,
            save_seconds=save_seconds,
            allow_import=allow_import,
            **_recipe_values(recipe, given, allow_import),
        )
    outcome = result.outcome
    if latex:
        _write_latex(outcome)
    if as_json:
        print(json.dumps(outcome.to_json(), indent=2))
    else:
        _show(outcome, result.page)
    if outcome.without_winner:
        names = ", ".join(outcome.without_winner)
        raise LabError(
            f"no winner for {names}: every trial diverged or was pruned; search lower learning "
            f"rates. What was tried is in {result.page}"
        )
    return 0


def _recipe_values(
    recipe: Path | None, given: dict[str, Any], allow_import: bool
) -> dict[str, Any]:
    """What trials share: all of the recipe but what is searched, and the seed."""
    values = read_values(recipe, given, allow_import=allow_import, optimizer="those of the space")
    left_out = ("optimizer", "settings", "seed")
    return {name: value for name, value in values.items() if name not in left_out}


def _write_latex(outcome: Outcome) -> None:
    from lpsgd.lab.report.document import write_tables
    from lpsgd.lab.report.source import this_command
    from lpsgd.lab.search.report.page import winners_table
    from lpsgd.lab.store.disk.files import writing

    folder = outcome.sweep.folder / "report"  # which has the table as CSV
    with writing(folder):
        write_tables([winners_table(outcome)], folder, csv=False, latex=True, source=this_command())


def _show(outcome: Outcome, page: Path) -> None:
    from rich.console import Console

    from lpsgd.lab.search.report.terminal import render_winners

    render_winners(outcome, Console(highlight=False))
    print(f"\nThe page with the figures: {page}")
    if outcome.winners:
        winners = str(outcome.sweep.folder / "winners")
        consent = ["--allow-import"] if outcome.imports else []
        words = ["lpsgd", "compare", "--recipes", winners, *consent, "--seeds", "5"]
        command = shlex.join(words)
        print(f"Compare the winners on the test set, with fresh seeds:\n  {command}")
