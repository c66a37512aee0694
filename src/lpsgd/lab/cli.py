"""The command line; each command lives in ``lpsgd.lab.commands`` and loads torch when it runs."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

import lpsgd
from lpsgd.lab.commands import (
    bench,
    compare,
    data,
    optimizers,
    report,
    reproduce,
    spectrum,
    status,
    sweep,
    train,
)
from lpsgd.lab.errors import LabError, ToldElsewhere

_CTRL_C = 130  # what typer returns for it

app = typer.Typer(
    name="lpsgd",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train networks with l_p-norm steepest descent, compare optimizers, look at curvature.",
)
app.command()(compare.compare)
app.command()(train.train)
app.command()(status.status)
app.command()(report.report)
app.command()(reproduce.reproduce)
app.command()(spectrum.spectrum)
app.command()(sweep.sweep)
app.command()(optimizers.optimizers)
app.command(
    # what follows the benchmark's name is the benchmark's own
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(bench.bench)
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"lpsgd {lpsgd.__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed while running, 2 wrong input."""
    try:
        result = app(arguments, standalone_mode=False)
        if result == _CTRL_C:
            raise typer.Abort
    except ToldElsewhere as error:
        return error.exit_code
    except LabError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"lpsgd: {error}", markup=False, style="red"
        )
        return error.exit_code
    except typer.Exit as request:
        return request.exit_code
    except typer.Abort:
        print("lpsgd: interrupted", file=sys.stderr)
        return 1
    except Exception as error:  # click's own usage errors know how to show themselves
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", 2))
    return result if isinstance(result, int) else 0
