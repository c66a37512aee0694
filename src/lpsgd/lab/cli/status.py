"""``lpsgd status``: where the runs of a folder are, from any shell that sees it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpsgd.lab.cli.options import AsJson

if TYPE_CHECKING:
    from rich.console import Console

    from lpsgd.lab.store.status import Status

_WATCH_SECONDS = 2.0


def status(
    folder: Annotated[Path, typer.Argument(help="Of a run, comparison, sweep or reproduction.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until nothing is running.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which runs are queued, running, done or failed, and the time left.

    Only files are read, so it works from another shell, and from another machine that shares the
    folder. It changes nothing.

    **Example**: look at a long reproduction

        lpsgd status reproduction/cpu
    """
    from rich.console import Console

    from lpsgd.lab.execution.progress import progress_table, time_left
    from lpsgd.lab.store.disk.jsonio import encode
    from lpsgd.lab.store.status import read_status

    if as_json:
        found = read_status(folder)
        shown = {
            "folder": str(folder),
            "commands": found.commands,
            "counts": Counter(run.state for run in found.runs),
            "seconds_left": time_left(found.runs),
            "runs": [asdict(run) for run in found.runs],
        }
        typer.echo(json.dumps(encode(shown), indent=2))
        return
    console = Console(highlight=False)
    found = _watch(folder, console) if watch else read_status(folder)
    rows = console.height - 4 if console.is_terminal else None
    console.print(progress_table(found.runs, rows=rows))
    states = {run.state for run in found.runs}
    if "running" not in states and states & {"queued", "interrupted", "failed"}:
        console.print("\nNothing is running now. To resume:", markup=False)
        for command in found.commands or ["the command that started it"]:
            console.print(f"  {command}", markup=False, soft_wrap=True)


def _watch(folder: Path, console: Console) -> Status:
    """Look until nothing is running: a live table on a terminal, lines elsewhere."""
    from rich.live import Live

    from lpsgd.lab.execution.progress import progress_line, progress_table
    from lpsgd.lab.store.status import read_status

    def running(found: Status) -> bool:
        return any(run.state == "running" for run in found.runs)

    found, told = read_status(folder), ""
    live = Live(console=console, auto_refresh=False, transient=True)
    # Ctrl-C ends the looking; the runs are not touched
    with live if console.is_terminal else nullcontext(), suppress(KeyboardInterrupt):
        while running(found):
            counts = progress_line(found.runs).partition(";")[0]
            if console.is_terminal:
                live.update(progress_table(found.runs, rows=console.height - 4), refresh=True)
            elif counts != told:
                print(progress_line(found.runs), file=sys.stderr, flush=True)
            told = counts
            time.sleep(_WATCH_SECONDS)
            found = read_status(folder)
    return found
