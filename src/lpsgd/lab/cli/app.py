"""The command line; each command lives in ``lpsgd.lab.cli`` and loads torch when it runs."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import typer
from rich.console import Console

import lpsgd
from lpsgd.lab.errors import LabError, ToldElsewhere, foreseen
from lpsgd.lab.formatting import printable

COMMANDS = {
    "compare": "Train with several optimizers and seeds, and test which differences are real.",
    "train": "Train one network with one optimizer, exactly resumable.",
    "suggest": "Suggest a learning rate by a short range test.",
    "sweep": "Search the settings of several optimizers, with the same number of trials for each.",
    "spectrum": "Draw and tabulate the spectrum of a run's Hessian.",
    "report": "Analyse the runs in DIR: print the table and write one self-contained HTML page.",
    "status": "Show which runs are queued, running, done or failed, and the time left.",
    "optimizers": "List the optimizers: rule, state, source, settings with defaults.",
    "data": "List, get and verify data sets.",
    "reproduce": "Regenerate a result of the paper: figures, tables, grids, claims, theory.",
    "bench": "Measure speed against named peers, in one run.",
}
"""In the order of the help; each is the function of its name in the module of its name, whose
docstring begins with the same words: to import them all would take longer than all else that
``lpsgd --help`` does."""

_CTRL_C = 130  # what typer returns for it


def _make_app(arguments: Sequence[str]) -> typer.Typer:
    """The application with the command that is called, or with the summaries of all of them."""
    app = typer.Typer(
        name="lpsgd",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_root)
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name not in COMMANDS:
        for known, summary in COMMANDS.items():
            app.command(known, help=summary)(lambda: None)
        return app
    module: Any = import_module(f"lpsgd.lab.cli.{name}")
    if hasattr(module, "app"):  # a command with commands of its own
        app.add_typer(module.app, name=name)
    else:
        app.command(name, context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))
    return app


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Train networks with l_p-norm steepest descent, compare optimizers, look at curvature."""
    if version:
        typer.echo(f"lpsgd {lpsgd.__version__}")
        raise typer.Exit


def _tell(text: str) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"lpsgd: {printable(text)}", markup=False, style="red")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed while running, 2 wrong input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what a terminal cannot show ends no command
            stream.reconfigure(errors="replace")
    try:
        result = _make_app(arguments)(arguments, standalone_mode=False)
        if result == _CTRL_C:
            raise typer.Abort
    except ToldElsewhere as error:
        return error.exit_code
    except LabError as error:
        _tell(str(error))
        return error.exit_code
    except typer.Exit as request:
        return request.exit_code
    except typer.Abort:
        print("lpsgd: interrupted", file=sys.stderr)
        return 1
    except Exception as error:  # click's own usage errors know how to show themselves
        show = getattr(error, "show", None)
        if show is None:
            if (text := foreseen(error)) is None:
                traceback.print_exc()
                text = (
                    "this is a mistake in lpsgd. Please report it with the lines above, the "
                    f"command, and the version: lpsgd {lpsgd.__version__}"
                )
            _tell(text)
            return LabError.exit_code
        if type(error).__name__ == "NoSuchOption":
            from lpsgd.lab.cli.unknown_option import unknown_option

            print(f"lpsgd: {unknown_option(error)}", file=sys.stderr)
        else:
            show()
        return int(getattr(error, "exit_code", 2))
    return result if isinstance(result, int) else 0
