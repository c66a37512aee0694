"""``lpsgd train``: one run."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from lpsgd.lab.cli.options import (
    DEVICE,
    RECORDS,
    AllowImport,
    AsJson,
    Log,
    RecipeFile,
    Root,
    SaveSeconds,
    TensorBoard,
    Workers,
    read_values,
    with_recipe_options,
)
from lpsgd.lab.errors import LabError
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.spectra.options import OPTIONS_HELP, parse_options
from lpsgd.lab.store.disk.jsonio import encode


@with_recipe_options()
def train(
    given: dict[str, Any],
    *,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:...]",
            help="Such as lpsgdm:lr=1e-2,p=6; `lpsgd optimizers` lists them.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder.")] = None,
    recipe: RecipeFile = None,
    allow_import: AllowImport = False,
    root: Root = None,
    workers: Workers = 0,
    save_seconds: SaveSeconds = 60.0,
    log: Log = "",
    tensorboard: TensorBoard = False,
    curvature: Annotated[
        str | None,
        typer.Option(
            metavar="every=5,...",
            help=f"Measure the Hessian's spectrum: {OPTIONS_HELP}.",
            rich_help_panel=RECORDS,
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="ddp|fsdp2",
            help="Under torchrun: copy the network, or shard it. [default: ddp]",
            rich_help_panel=DEVICE,
            show_default=False,
        ),
    ] = "ddp",
    as_json: AsJson = False,
) -> int:
    """Train one network with one optimizer, exactly resumable.

    **Example**: a small network on real digits, in seconds

        lpsgd train --model mlp --optimizer lpsgdm:lr=1e-2,p=6 --epochs 20

    The same command resumes where it was stopped, to the same result. On several devices:
    `torchrun --nproc-per-node 2 -m lpsgd train ...`
    """
    from lpsgd.lab.api.arguments import Own, read_training
    from lpsgd.lab.log import check_loggers, logger_names
    from lpsgd.lab.plan import default_folder, resolve
    from lpsgd.lab.training.options import RunOptions, check_strategy
    from lpsgd.lab.training.parallel import launched

    def read_recipe() -> Recipe:
        check_strategy(strategy)
        if curvature is not None:
            parse_options(curvature)
        values = read_values(recipe, given, allow_import=allow_import, optimizer=optimizer)
        return resolve(read_training(Own(), values, values.get("seed", 0)).values, optimizer)

    loggers = logger_names(log, tensorboard=tensorboard)
    options = RunOptions(root, workers, save_seconds, loggers, curvature, strategy=strategy)
    # a mistake is told before torch is loaded; by torchrun's processes once
    early = None if launched() else read_recipe()

    from lpsgd.lab.execution.live_run import RunDisplay
    from lpsgd.lab.execution.signals import stop_on_signals
    from lpsgd.lab.own.given import problem_of
    from lpsgd.lab.training.loop import train as run_training
    from lpsgd.lab.training.parallel.world import joined

    with stop_on_signals(patient=launched()) as stop, joined() as world:
        complete = early or read_recipe()
        world.from_main(lambda: check_loggers(loggers))
        folder = out or default_folder(complete)
        silent = nullcontext(lambda event: None)
        with RunDisplay(complete.epochs) if world.main else silent as listen:
            result = run_training(
                complete,
                folder,
                options=options,
                stop=stop,
                listen=listen,
                world=world,
                problem=problem_of(complete),
            )
        if as_json and world.main:
            print(json.dumps(encode({"folder": str(folder), **result.model_dump()})))
        if result.state == "diverged":
            raise LabError(f"diverged: {result.reason}. The run is in {folder}")
        if not as_json and world.main:
            print(f"complete; the run is in {folder}")
    return 0
