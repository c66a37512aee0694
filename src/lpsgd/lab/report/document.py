"""Documents of text, tables and pictures: Markdown, CSV, LaTeX, SVG, PNG, one page for all."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from markupsafe import Markup, escape

from lpsgd.lab.formatting import cell_text
from lpsgd.lab.report.template import render_page
from lpsgd.lab.store.disk.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lpsgd.lab.report.source import Source

_SHORT = 24  # characters of a cell that is not broken into lines

Tone = Literal["", "best", "reference", "good", "bad", "doubtful", "aside"]
"""What a reader should notice of a cell; terminals have colours for it, papers bold."""


@dataclass(frozen=True)
class Value:
    """A cell that people read as ``text`` and programs as ``numbers``."""

    text: str
    numbers: tuple[float | str | None, ...]
    tone: Tone = ""

    def __str__(self) -> str:
        """As Markdown, which documents are written in."""
        return f"**{self.text}**" if self.tone == "best" else self.text


Cell: TypeAlias = "str | int | float | bool | Value | None"


@dataclass(frozen=True)
class Text:
    """A paragraph, or a list if there are several items."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows under named columns. ``NAME.csv`` has them exactly, Markdown and page for people.

    ``shown`` is False for the numbers behind a picture, which nobody reads as text. ``note``
    stands below. ``parts`` names the CSV's columns for a column whose cells have several numbers.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    shown: bool = True
    note: str = ""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """A figure, saved as ``NAME.svg`` and ``NAME.png``."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Attachment:
    """Another file that the target wrote beside the rest, such as an interactive page."""

    name: str
    caption: str


DocumentBlock: TypeAlias = "Text | Table | Picture | Attachment"


@dataclass(frozen=True)
class Document:
    """One target's result: its name, a title that says at which scale, and what it found."""

    name: str
    title: str
    blocks: list[DocumentBlock] = field(default_factory=list)

    def add(self, *blocks: DocumentBlock) -> Document:
        """Append blocks and return the document."""
        self.blocks.extend(blocks)
        return self


def text(*items: str) -> Text:
    """A paragraph (one item) or a list (several)."""
    return Text(items)


def write_document(
    document: Document, folder: Path, *, latex: bool = False, source: Source | None = None
) -> list[Path]:
    """Write everything into ``folder``; return the paths, ``NAME.md`` last."""
    from lpsgd.lab.report.style import save_figure

    written: list[Path] = []
    for block in document.blocks:
        if isinstance(block, Picture):
            written += save_figure(block.figure, folder / block.name, source=source)
        elif isinstance(block, Table):
            written += write_tables([block], folder, latex=latex and block.shown, source=source)
        elif isinstance(block, Attachment):
            written.append(folder / block.name)
    path = folder / f"{document.name}.md"
    write_text(path, to_markdown(document))
    return [*written, path]


def write_tables(
    tables: Sequence[Table],
    folder: Path,
    *,
    csv: bool = True,
    latex: bool = False,
    source: Source | None = None,
) -> list[Path]:
    """Write each table as ``NAME.csv`` and, for papers, as ``NAME.tex``."""
    from lpsgd.lab.report.latex import to_latex

    written: list[Path] = []
    for table in tables:
        for wanted, suffix in ((csv, "csv"), (latex, "tex")):
            if wanted:
                path = folder / f"{table.name}.{suffix}"
                write_text(path, to_csv(table) if suffix == "csv" else to_latex(table, source))
                written.append(path)
    return written


def to_csv(table: Table) -> str:
    """The table with full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [name for column in table.columns for name in table.parts.get(column, (column,))]
    )
    writer.writerows([[part for cell in row for part in _plain(cell)] for row in table.rows])
    return out.getvalue()


def _plain(cell: Cell) -> Sequence[Cell]:
    """A cell for programs: nothing for None, no stars around what a reader sees in bold."""
    if isinstance(cell, Value):
        return ["" if number is None else number for number in cell.numbers]
    if isinstance(cell, str) and cell.startswith("**") and cell.endswith("**"):
        return [cell[2:-2]]
    return ["" if cell is None else cell]


def to_markdown(document: Document) -> str:
    """The document as Markdown that shows the pictures beside it."""
    parts = [f"# {document.title}"]
    for block in document.blocks:
        if isinstance(block, Text):
            one = len(block.items) == 1
            parts.append(block.items[0] if one else "\n".join(f"- {i}" for i in block.items))
        elif isinstance(block, Picture):
            parts.append(f"![{block.caption}]({block.name}.svg)\n\n*{block.caption}*")
        elif isinstance(block, Attachment):
            parts.append(f"[{block.caption}]({block.name})")
        elif block.shown:
            parts.append(f"**{block.caption}**\n\n{to_markdown_table(block)}")
        else:
            parts.append(f"Numbers: [{block.name}.csv]({block.name}.csv) ({block.caption})")
    return "\n\n".join(parts) + "\n"


def to_markdown_table(table: Table) -> str:
    """The table's head and rows."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---:" if is_number(table, place) else "---" for place in range(len(table.columns))]
    body = [line([cell_text(cell) for cell in row]) for row in table.rows]
    return "\n".join([line(table.columns), line(rule), *body])


def is_number(table: Table, place: int) -> bool:
    """Whether a column holds numbers alone."""
    cells = [row[place] for row in table.rows if row[place] is not None]
    return not any(
        any(isinstance(number, str) for number in cell.numbers)
        if isinstance(cell, Value)
        else isinstance(cell, str)
        for cell in cells
    )


# ---------------------------------------------------------------------- on a page


def write_document_page(
    documents: Sequence[Document],
    out: Path,
    *,
    title: str,
    subtitle: str,
    missing: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write ``out``/index.html; ``missing`` names what could not be made, and why."""

    def image(picture: Picture, document: Document) -> str:
        svg = (out / document.name / f"{picture.name}.svg").read_bytes()
        return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"

    page = render_page(
        "documents",
        title=title,
        subtitle=subtitle,
        documents=documents,
        missing=missing,
        image=image,
        inline=inline,
        is_number=is_number,
        cell_class=_cell_class,
    )
    path = out / "index.html"
    write_text(path, page)
    return path


def _cell_class(cell: object) -> str | None:
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return "number"
    special = {"agrees": "good", "does not follow": "bad"}.get(str(cell))
    return special or ("short" if len(str(cell)) < _SHORT else None)


def inline(text: str) -> Markup:
    """``**bold**`` and ``code`` in backquotes, everything else escaped.

    >>> print(inline("a **b** `c < d`"))
    a <strong>b</strong> <code>c &lt; d</code>
    """

    def tag(found: re.Match[str]) -> str:
        bold, code = found.groups()
        return f"<strong>{bold}</strong>" if bold else f"<code>{code}</code>"

    return Markup(re.sub(r"\*\*(.+?)\*\*|`(.+?)`", tag, str(escape(text))))
