"""Documents on one HTML page that needs no other file: of the paper, or of a sweep."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

from lpsgd.lab.report.document import (
    Attachment,
    Block,
    Document,
    Picture,
    Table,
    Text,
    is_number,
    shown,
)
from lpsgd.lab.report.html import Html, element, join
from lpsgd.lab.report.template import asset, frame
from lpsgd.lab.store.files import write_text

PAGE = "index.html"
_SHORT = 24  # characters of a cell that is not broken into lines


def gather(
    documents: Sequence[Document],
    out: Path,
    *,
    title: str,
    subtitle: str,
    missing: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write ``out``/index.html; ``missing`` names what could not be made, and why."""
    contents = element("nav", _contents(documents, missing), aria_label="Contents")
    page = frame(
        title,
        subtitle,
        join(contents, *(_section(document, out) for document in documents)),
        style=asset(__package__, "templates/documents.css"),
    )
    path = out / PAGE
    write_text(path, page)
    return path


def _contents(documents: Sequence[Document], missing: Sequence[tuple[str, str]]) -> Html:
    items = [
        element("li", element("a", document.title, href=f"#{document.name}"))
        for document in documents
    ]
    items += [element("li", element("b", name), f" was not made: {why}") for name, why in missing]
    return element("ul", *items)


def _section(document: Document, out: Path) -> Html:
    blocks = (_block(block, document, out) for block in document.blocks)
    return element("section", element("h2", document.title), *blocks, id=document.name)


def _block(block: Block, document: Document, out: Path) -> Html:
    if isinstance(block, Text):
        if len(block.items) == 1:
            return element("p", inline(block.items[0]))
        return element("ul", *(element("li", inline(item)) for item in block.items))
    if isinstance(block, Picture):
        return _figure(block, out / document.name)
    if isinstance(block, Attachment):
        link = element("a", block.caption, href=f"{document.name}/{block.name}")
        return element("p", link)
    if not block.shown:
        link = element("a", f"{block.name}.csv", href=f"{document.name}/{block.name}.csv")
        return element("p", "Numbers: ", link, f" ({block.caption})", class_="note")
    return _table(block)


def _figure(picture: Picture, folder: Path) -> Html:
    svg = (folder / f"{picture.name}.svg").read_bytes()
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    width = f"max-width: {picture.figure.get_figwidth() * 144:.0f}px"
    image = element("img", src=source, alt=picture.caption, style=width)
    return element("figure", image, element("figcaption", inline(picture.caption)), class_="print")


def _table(table: Table) -> Html:
    head = element(
        "tr",
        *(
            element("th", name, scope="col", class_="number" if is_number(table, place) else None)
            for place, name in enumerate(table.columns)
        ),
    )
    body = [
        element(
            "tr",
            *(
                element("td", inline(shown(cell)), class_=_kind(cell), title=_exact(cell))
                for cell in row
            ),
        )
        for row in table.rows
    ]
    made = element("table", element("thead", head), element("tbody", *body), class_="plain")
    return element(
        "div", element("h3", inline(table.caption)), element("div", made, class_="scroll")
    )


def _kind(cell: object) -> str | None:
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return "number"
    special = {"agrees": "good", "does not follow": "bad"}.get(str(cell))
    return special or ("short" if len(str(cell)) < _SHORT else None)


def _exact(cell: object) -> str | None:
    return repr(cell) if isinstance(cell, float) else None


def inline(text: str) -> Html:
    """``**bold**`` and ``code`` in backquotes, everything else escaped.

    >>> inline("a **b** `c < d`")
    'a <strong>b</strong> <code>c &lt; d</code>'
    """
    parts = re.split(r"(\*\*.+?\*\*|`.+?`)", text)
    made = []
    for part in parts:
        if part.startswith("**") and part.endswith("**") and len(part) > 4:
            made.append(element("strong", part[2:-2]))
        elif part.startswith("`") and part.endswith("`") and len(part) > 2:
            made.append(element("code", part[1:-1]))
        else:
            made.append(join(part))
    return join(*made)
