"""``lpsgd report``: the table and the page of runs that are on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpsgd.lab.cli.options import AsJson, Csv, Figure, FigureWidth, Latex
from lpsgd.lab.report.widths import TEXT
from lpsgd.lab.report.widths import figure_width as read_width

if TYPE_CHECKING:
    from lpsgd.lab.api.comparison_result import ComparisonResult

_NAMES = {".html": "Page", ".tex": "Table", ".csv": "Table"}


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
    latex: Latex = False,
    csv: Csv = False,
    figure: Figure = False,
    figure_width: FigureWidth = None,
    as_json: AsJson = False,
) -> None:
    """Analyse the runs in DIR: print the table and write one self-contained HTML page.

    The page works offline: results with intervals and paired tests, learning curves with bands over
    seeds, p and learning rate over time, settings and environment of every run.

    Example: `lpsgd report runs/digits --latex --figure-width icml`
    """
    width = read_width(figure_width) or (TEXT if figure else None)

    from lpsgd.lab.api.comparison_result import ComparisonResult

    result = ComparisonResult.read(folder, reference)
    show(result, page=out, latex=latex, csv=csv, width=width, as_json=as_json)


def show(
    result: ComparisonResult,
    *,
    page: Path | None = None,
    latex: bool,
    csv: bool,
    width: float | None,
    as_json: bool,
) -> None:
    """Print the tables of a comparison, or JSON; write its page and what else is asked for.

    ``width`` is that of the figure in inches; without it, none is drawn.
    """
    from rich.console import Console

    from lpsgd.lab.report.document import write_tables
    from lpsgd.lab.report.source import comparison_source
    from lpsgd.lab.report.tables import comparison_tables
    from lpsgd.lab.store.disk.files import writing

    analysis, folder = result.analysis, result.folder
    page = page or folder / "report.html"
    console = Console(highlight=False)
    # the numbers first: a disk without room for the page must not cost them
    if as_json:
        print(json.dumps({**analysis.to_json(), "page": str(page)}, indent=2, allow_nan=False))
    else:
        result.show(console)
    with writing(page.parent):
        result.write_page(page)
        tables, source = comparison_tables(analysis), comparison_source(analysis)
        written = write_tables(tables, folder / "tables", csv=csv, latex=latex, source=source)
        if width is not None:
            from lpsgd.lab.report.figure import write_figure  # matplotlib takes a second

            written += write_figure(analysis, folder / "curves", width)
    if not as_json:
        for path in [page, *written]:
            name = _NAMES.get(path.suffix, "Figure")
            console.print(f"{name}: {path}", markup=False, soft_wrap=True)
