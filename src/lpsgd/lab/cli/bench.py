"""``lpsgd bench``: the files of benchmarks/, each a ratio against a named peer."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError

# The benchmarks are part of the repository, not of the installed package: they need the peers.
FOLDER = Path(__file__).parents[4] / "benchmarks"

# what follows the benchmark's name is the benchmark's own
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which one. [default: list them]")] = None,
) -> None:
    """Measure speed against named peers, in one run.

    **Example**: the trainer against a bare PyTorch loop, and more

        lpsgd bench training

    What follows the name is given to the benchmark: `lpsgd bench training epoch`. The benchmarks
    are in the repository, not in the installed package: run this in a clone.
    """
    found = {path.stem: path for path in sorted(FOLDER.glob("[a-z]*.py"))}
    if not found:
        raise UserError("the benchmarks are in the repository, in benchmarks/")
    if name is None:
        for stem, path in found.items():
            title = path.read_text(encoding="utf-8").partition("\n")[0].strip('"')
            print(f"{stem:<12} {title}")
        return
    if name not in found:
        raise UserError(unknown_name("benchmark", name, found))
    before, sys.argv = sys.argv, [f"lpsgd bench {name}", *context.args]
    sys.path.insert(0, str(FOLDER))  # they import each other, as `python benchmarks/...` lets them
    try:
        runpy.run_path(str(found[name]), run_name="__main__")
    finally:
        sys.argv = before
        sys.path.remove(str(FOLDER))
