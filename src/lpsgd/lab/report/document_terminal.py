"""A document in a terminal: its title, its text and its tables. Pictures stay in their files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from lpsgd.lab.formatting import cell_text
from lpsgd.lab.report.document import Document, Table, Text, is_number

_LONGEST_UNBROKEN = 24  # characters of a cell that is never broken into lines
_NARROWEST_TEXT = 12  # columns for the text of longer cells


def print_document(document: Document, console: Console) -> None:
    """Print what a reader of the Markdown file would read, tables no wider than the terminal."""
    console.print(RichText(document.title, style="bold"))
    for block in document.blocks:
        if isinstance(block, Text):
            console.print()
            console.print(_items(block.items) if len(block.items) > 1 else _inline(*block.items))
        elif isinstance(block, Table) and block.shown:
            console.print()
            console.print(_inline(block.caption), style="bold")
            if sum(_is_text(block, place) for place in range(len(block.columns))) > 1:
                console.print(_records(block))
                continue
            for columns in _parts(block, console.width):
                console.print(_table(block, columns, console.width))
    console.print()


def _items(items: Sequence[str]) -> RichTable:
    shown = RichTable.grid(padding=(0, 1, 0, 0))
    for item in items:
        shown.add_row("-", _inline(item))
    return shown


def _records(table: Table) -> RichTable:
    """A table of long texts, one cell below the other: side by side they would be ribbons."""
    shown = RichTable.grid(padding=(0, 2, 0, 0))
    for row in table.rows:
        for name, cell in zip(table.columns, row, strict=True):
            shown.add_row(RichText(name, style="dim"), _inline(cell_text(cell)))
        shown.add_row()
    return shown


def _table(table: Table, columns: Sequence[int], width: int) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    fits = sum(max(len(table.columns[c]), _needed(table, c)) + 2 for c in columns) <= width
    for place in columns:
        heading = table.columns[place]
        if not fits:  # what is left of the width belongs to the cells
            heading = "\n".join(textwrap.wrap(heading, _needed(table, place)))
        shown.add_column(
            RichText(heading),
            justify="right" if is_number(table, place) else "left",
            no_wrap=not _is_text(table, place),
            overflow="fold",
        )
    for row in table.rows:
        shown.add_row(*(_inline(cell_text(row[place])) for place in columns))
    return shown


def _parts(table: Table, width: int) -> Iterator[list[int]]:
    """The columns, in as many tables as the width asks for; each begins with what names a row."""
    repeated = len({row[0] for row in table.rows}) < len(table.rows)
    names = [0, 1] if repeated and len(table.columns) > 2 else [0]
    columns = list(names)
    for place in range(len(names), len(table.columns)):
        if len(columns) > len(names) and _width(table, [*columns, place]) > width:
            yield columns
            columns = list(names)
        columns.append(place)
    yield columns


def _width(table: Table, columns: Sequence[int]) -> int:
    """The least width of these columns, with two spaces around each."""
    return sum(_needed(table, place) + 2 for place in columns)


def _needed(table: Table, place: int) -> int:
    """The least width in which every short cell and every word of a heading is whole."""
    heading = max(len(word) for word in table.columns[place].split())
    if _is_text(table, place):
        return max(heading, _NARROWEST_TEXT)
    return max(heading, *(len(_inline(cell_text(row[place]))) for row in table.rows))


def _is_text(table: Table, place: int) -> bool:
    return any(len(_inline(cell_text(row[place]))) > _LONGEST_UNBROKEN for row in table.rows)


def _inline(text: str) -> RichText:
    """``**bold**`` in bold, the backquotes around code left out."""
    parts = re.split(r"\*\*(.+?)\*\*", text.replace("`", ""))
    return RichText.assemble(*((part, "bold" if k % 2 else "") for k, part in enumerate(parts)))
