"""``lpsgd report``: the table and the page of runs that are on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpsgd.lab.cli.options import AsJson

if TYPE_CHECKING:
    from lpsgd.lab.api.comparison_result import ComparisonResult


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A comparison's folder, or any folder that holds runs.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to write the page; DIR/report.html if not given."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="The optimizer that the others are tested against; the comparison's if not given."
        ),
    ] = None,
    figure: Annotated[
        bool, typer.Option("--figure", help="Also draw the curves: DIR/curves.svg and .png.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Analyse the runs in DIR: print the table and write one self-contained HTML page.

    The page works offline: results with intervals and paired tests, learning curves with bands over
    seeds, p and learning rate over time, settings and environment of every run.

    Example: `lpsgd report runs/digits --out digits.html`
    """
    from lpsgd.lab.api.comparison_result import ComparisonResult

    show(ComparisonResult.read(folder, reference), page=out, figure=figure, as_json=as_json)


def show(
    result: ComparisonResult, *, page: Path | None = None, figure: bool = False, as_json: bool
) -> None:
    """Print the tables of a comparison, or JSON, and write its page and figure."""
    from rich.console import Console

    from lpsgd.lab.store.disk.files import writing

    analysis, folder = result.analysis, result.folder
    page = page or folder / "report.html"
    console = Console(highlight=False)
    # the numbers first: a disk without room for the page must not cost them
    if as_json:
        print(json.dumps({**analysis.to_json(), "page": str(page)}, indent=2, allow_nan=False))
    else:
        result.show(console)
    written = []
    with writing(page.parent):
        result.write_page(page)
        if figure:
            from lpsgd.lab.report.figure import write_figure  # matplotlib takes a second

            written = write_figure(analysis, folder / "curves")
    if not as_json:
        for name, path in [("Page", page), *[("Figure", path) for path in written]]:
            console.print(f"{name}: {path}", markup=False, soft_wrap=True)
