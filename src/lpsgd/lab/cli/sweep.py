"""``lpsgd sweep``: search every optimizer's settings with equal budgets, on validation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpsgd._suggest import unknown_name
from lpsgd.lab.cli.options import (
    EXECUTION,
    SEARCH,
    AllowImport,
    AsJson,
    Latex,
    RecipeFile,
    Root,
    SaveSeconds,
    Workers,
    read_values,
    with_executor_options,
    with_recipe_options,
)
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.store.command_line import command_line

if TYPE_CHECKING:
    from lpsgd.lab.recipe import Recipe
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
        str,
        typer.Option(
            metavar="top1|nll",
            help="Validation score to choose by. [default: top1]",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ] = "top1",
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
    from lpsgd.lab.plan import resolve
    from lpsgd.lab.search.definition import Sweep
    from lpsgd.lab.search.method import DIRECTIONS, PRUNERS, SAMPLERS, Search, count_trials
    from lpsgd.lab.search.space_file import read_space
    from lpsgd.lab.search.storage import StorageUrl
    from lpsgd.lab.store.disk.files import writing
    from lpsgd.lab.training.options import RunOptions

    for option, value, allowed in (
        ("--sampler", sampler, SAMPLERS),
        ("--pruner", pruner, PRUNERS),
        ("--metric", metric, DIRECTIONS),
    ):
        if value not in allowed:
            raise UserError(unknown_name(option, value, allowed))
    labels = [part.strip() for part in optimizers.split(",")] if optimizers else None
    searched = ("optimizer", "settings")
    values = {k: v for k, v in read_values(recipe, given).items() if k not in searched}
    values["seed"] = train_seed
    shared = resolve(values)
    competitors = read_space(space, only=labels, allow_import=allow_import)
    count = count_trials(competitors, sampler, trials)

    # what takes seconds to load, when every name has been checked
    from lpsgd.lab.search.outcome import conclude
    from lpsgd.lab.search.report.page import write_report, write_winners
    from lpsgd.lab.search.run import run_search

    values["val_size"] = _validation_size(shared, values.get("val_size"), root)
    epochs = Sweep(values, competitors, None).recipe_of_all().epochs  # type: ignore[arg-type]
    how = Search(sampler, pruner, metric, count, round_size, seed, epochs, seeds)
    plan, command = Sweep(values, competitors, how, out), command_line()
    url = StorageUrl(storage) if storage else StorageUrl.of_file(plan.folder / "trials.db")
    options = RunOptions(root, workers, save_seconds)
    outcome = conclude(plan, run_search(plan, url, executor, options, command=command))
    with writing(plan.folder):
        write_winners(outcome, command)
        page = write_report(outcome, command, latex=latex)
    if as_json:
        print(json.dumps(outcome.to_json(), indent=2))
    else:
        _show(outcome, page)
    if outcome.without_winner:
        names = ", ".join(outcome.without_winner)
        raise LabError(
            f"no winner for {names}: every trial diverged or was pruned; search lower learning "
            f"rates. What was tried is in {page}"
        )
    return 0


def _validation_size(shared: Recipe, asked: int | None, root: Path | None) -> int:
    """How many images are held out of the training set.

    As many as were asked for, or a fifth (of the images that `train_size` asks for, else of all).
    """
    import torch

    from lpsgd.lab import models
    from lpsgd.lab.training.build import load_data
    from lpsgd.lab.training.options import RunOptions

    if asked == 0:
        raise UserError("--val-size 0: trials are chosen on the validation split; give it images")
    val_size = shared.val_size or (max(1, shared.train_size // 5) if shared.train_size else 0)
    # load data and make the model once, so that a mistake is told before anything is written
    checked = shared.with_changes(val_size=val_size)
    data = load_data(checked, RunOptions(root), torch.device("cpu"))
    shape, classes = data.input_shape, data.classes
    models.create(shared.model, input_shape=shape, classes=classes, width=shared.width)
    return val_size or max(1, data.train.size // 5)


def _show(outcome: Outcome, page: Path) -> None:
    from rich.console import Console

    from lpsgd.lab.search.report.terminal import render_winners

    render_winners(outcome, Console(highlight=False))
    print(f"\nThe page with the figures: {page}")
    if outcome.winners:
        winners = str(outcome.sweep.folder / "winners")
        command = shlex.join(["lpsgd", "compare", "--recipes", winners, "--seeds", "5"])
        print(f"Compare the winners on the test set, with fresh seeds:\n  {command}")
