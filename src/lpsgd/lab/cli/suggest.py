"""``lpsgd suggest``: a first learning rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lpsgd.lab.cli.options import (
    AllowImport,
    AsJson,
    RecipeFile,
    Root,
    Workers,
    read_values,
    with_recipe_options,
)
from lpsgd.lab.formatting import setting_argument
from lpsgd.lab.store.disk.jsonio import encode

# what a few steps at rising rates do not know
_UNUSED = ("epochs", "lr_schedule", "warmup_epochs", "lr_end", "ema", "train_eval_every")


@with_recipe_options(without=_UNUSED)
def suggest(
    given: dict[str, Any],
    *,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:...]",
            help="Such as lpsgdm:p=6; `lpsgd optimizers` lists them. [default: lpsgdm]",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of the test. [default: 100]", show_default=False)
    ] = 100,
    low: Annotated[
        float | None,
        typer.Option(metavar="X", help="The first rate; default: the optimizer's / 1000."),
    ] = None,
    high: Annotated[
        float | None,
        typer.Option(metavar="X", help="The last rate; default: the optimizer's x 1000."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder for the plot, as SVG and PNG.")
    ] = None,
    recipe: RecipeFile = None,
    allow_import: AllowImport = False,
    root: Root = None,
    workers: Workers = 0,
    as_json: AsJson = False,
) -> None:
    """Suggest a learning rate by a short range test.

    **Example**: where to begin with LPMuon on real digits, in seconds

        lpsgd suggest --model mlp --dataset digits --optimizer lpmuon --out plots

    The rate rises from step to step until the loss does; see docs/own-model.md for what that can
    tell, and what not. The weight decay is the optimizer's default.
    """
    from lpsgd.lab import suggest as run_test

    values = dict(read_values(recipe, given, allow_import=allow_import, optimizer=optimizer))
    name, settings = values.pop("optimizer", "lpsgdm"), values.pop("settings", {})
    if optimizer is None:
        pairs = ",".join(f"{key}={setting_argument(value)}" for key, value in settings.items())
        optimizer = f"{name}:{pairs}" if pairs else name
    result = run_test(
        optimizer, steps=steps, low=low, high=high, out=out, root=root, workers=workers, **values
    )
    if as_json:
        shown = {"lr": result.lr, "settings": result.settings, "optimizer": result.text}
        curve = {"lrs": result.test.lrs, "losses": result.test.losses}
        print(json.dumps(encode({**shown, "notes": result.notes, **curve})))
        return
    print(result)
    if out is not None:
        print(f"plot: {out / 'suggest.svg'}")
