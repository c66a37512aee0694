"""Documents on one HTML page that needs no other file: of the paper, or of a sweep."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from lpsgd.lab.report.document import Document, Picture, is_number
from lpsgd.lab.report.template import render_page
from lpsgd.lab.store.disk.files import write_text

_SHORT = 24  # characters of a cell that is not broken into lines


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
