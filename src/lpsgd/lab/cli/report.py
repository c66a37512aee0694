"""``lpsgd report``: the table and the page of runs that are on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the analysis as JSON instead of the table.")
    ] = False,
) -> None:
    """Analyse the runs in DIR: print the table and write one self-contained HTML page.

    The page works offline: results with intervals and paired tests, learning curves with bands over
    seeds, p and learning rate over time, settings and environment of every run.

    Example: `lpsgd report runs/digits --out digits.html`
    """
    import json

    from rich.console import Console

    from lpsgd.lab.analysis.comparison import analyse
    from lpsgd.lab.errors import LabError
    from lpsgd.lab.report.comparison_page import write_comparison_page
    from lpsgd.lab.report.terminal import print_analysis
    from lpsgd.lab.store.run_record import load_comparison

    analysis = analyse(load_comparison(folder), reference)
    path = out or folder / "report.html"
    drawn: list[Path] = []
    try:
        write_comparison_page(analysis, path)
        if figure:
            from lpsgd.lab.report.figure import write_figure  # matplotlib takes a second

            drawn = write_figure(analysis, folder / "curves")
    except OSError as error:
        raise LabError(f"cannot write the page to {str(path)!r}: {error.strerror}") from error
    if as_json:
        typer.echo(json.dumps({**analysis.to_json(), "page": str(path)}, indent=2, allow_nan=False))
        return
    console = Console()
    print_analysis(analysis, console)
    for name, written in [("Page", path), *[("Figure", file) for file in drawn]]:
        console.print(f"{name}: {written}", markup=False, highlight=False, soft_wrap=True)
