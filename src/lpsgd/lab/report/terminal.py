"""The analysis in a terminal: narrow tables, each of which fits 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from lpsgd.lab.analysis.comparison import Analysis
from lpsgd.lab.labels import FoldedLabel
from lpsgd.lab.report.document import Table, Tone, Value, is_number
from lpsgd.lab.report.tables import comparison_tables
from lpsgd.lab.report.words import method, subtitle, title

_STYLES: dict[Tone, str] = {
    "": "",
    "best": "bold",
    "reference": "bold",
    "good": "bold green",
    "bad": "bold red",
    "doubtful": "yellow",
    "aside": "dim",
}


def print_analysis(analysis: Analysis, console: Console) -> None:
    """Print the verdict, the results, the tests against the reference and the costs."""
    *tables, costs = comparison_tables(analysis)
    parts: list[RichTable | Text] = [Text(f"{title(analysis)}: {subtitle(analysis)}", style="bold")]
    parts += [_rich(table) for table in tables]
    if len(analysis.results) > 1:
        parts.append(Text(method(analysis), style="dim"))
    parts.append(_rich(costs))
    console.print()
    for part in parts:
        console.print(part)
        console.print()
    _lines(console, "Notes", analysis.notes)
    _lines(console, "Verdict", analysis.verdict)


def _rich(table: Table) -> RichTable:
    shown = RichTable(
        title=Text(table.caption),
        title_justify="left",
        title_style="bold",
        caption=Text(table.note) if table.note else None,
        caption_justify="left",
        caption_style="dim",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    # only the label may fold: a number in two lines is hard to read
    shown.add_column(table.columns[0], overflow="fold", min_width=8)
    for place, column in enumerate(table.columns[1:], start=1):
        side = "right" if is_number(table, place) else "left"
        shown.add_column(column, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for label, *cells in table.rows:
        shown.add_row(_cell(label, FoldedLabel), *(_cell(cell, Text) for cell in cells))
    return shown


def _cell(cell: object, kind: type[Text] | type[FoldedLabel]) -> Text | FoldedLabel:
    text, tone = (cell.text, cell.tone) if isinstance(cell, Value) else (str(cell), "")
    return kind(text, style=_STYLES[tone])


def _lines(console: Console, name: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    console.print(Text(name, style="bold"))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    console.print()
