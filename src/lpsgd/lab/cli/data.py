"""``lpsgd data list | get NAME | verify NAME``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lpsgd.lab.cli.options import AsJson, Root
from lpsgd.lab.errors import LabError

if TYPE_CHECKING:
    from lpsgd.lab.data.catalogue import Entry
    from lpsgd.lab.data.source.download import Report

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A name that `lpsgd data list` shows.")]


@app.callback()
def data() -> None:
    """List, get and verify data sets."""


@app.command("list")
def list_(root: Root = None, as_json: AsJson = False) -> None:
    """Show the data sets, their options and whether they are on this machine.

    Example: `lpsgd data list`
    """
    from lpsgd.lab.data import data_root, names
    from lpsgd.lab.data.catalogue import entry

    folder = data_root(root)
    described = [_describe(entry(name), folder) for name in names()]
    if as_json:
        typer.echo(json.dumps({"root": str(folder), "data": described}, indent=2))
        return
    for line in described:
        typer.echo(f"{line['name']:12} {line['state']:9} {line['summary']}")
        for option, meaning in line["options"].items():
            typer.echo(f"{'':22} {option}: {meaning}")
    typer.echo(f"data root: {folder}")


def _describe(description: Entry, folder: Path) -> dict[str, Any]:
    if description.layouts:
        there = any(not layout.missing(folder) for layout in description.layouts)
    else:
        there = description.name != "imagefolder" or (folder / "imagefolder").is_dir()
    return {
        "name": description.name,
        "state": "present" if there else "missing",
        "summary": description.summary,
        "options": dict(description.options),
    }


@app.command()
def get(
    name: Name,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Download a data set, check its checksums and unpack it. A broken download is resumed.

    Example: `lpsgd data get cifar10 --root ~/data`
    """
    from lpsgd.lab.data import data_root
    from lpsgd.lab.data.source import obtain

    folder = data_root(root)
    # with --json standard output is for the program that reads it
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with _progress(console) as report:
        obtain.get(
            name,
            folder,
            say=lambda line: console.print(line, markup=False),
            report=report,
        )
    if as_json:
        typer.echo(json.dumps({"name": name, "root": str(folder)}))


@contextmanager
def _progress(console: Console) -> Iterator[Report]:
    """A progress bar on a terminal, elsewhere a line at every tenth of a download."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    tenths = 0

    def line(done: int, total: int | None) -> None:
        nonlocal tenths
        if total and 10 * done // total > tenths:
            tenths = 10 * done // total
            console.print(f"{done / 1e6:.1f} of {total / 1e6:.1f} MB", markup=False)

    if not console.is_terminal:
        yield line
        return
    shown = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*shown, console=console) as progress:
        task = progress.add_task("download", total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)


@app.command()
def verify(name: Name, root: Root = None, as_json: AsJson = False) -> None:
    """Check the files of a data set against the published checksums, images by decoding them.

    Example: `lpsgd data verify cifar10`
    """
    from lpsgd.lab.data import data_root
    from lpsgd.lab.data.source import obtain

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    checks = []
    with console.status(f"verifying {name}") as status:
        for check in obtain.verify(name, data_root(root)):
            checks.append(check)
            status.update(f"verifying {name}: {len(checks)} files")
    wrong = [check for check in checks if not check.ok]
    if as_json:
        files = [asdict(check) for check in checks]
        typer.echo(json.dumps({"name": name, "ok": not wrong, "files": files}, indent=2))
    else:
        # a folder of a million images: only what is wrong is worth a line
        for check in checks if len(checks) <= 20 else wrong:
            typer.echo(f"{check.path}: {check.detail}")
    if wrong:
        raise LabError(f"{name}: {len(wrong)} of {len(checks)} files are missing or damaged")
    if not as_json:
        typer.echo(f"{name}: ok")
