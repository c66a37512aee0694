"""A hook of mkdocs: formulas become MathML, which browsers draw without a script from elsewhere."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# what pymdownx.arithmatex makes of \( \) and \[ \]
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(content: str, **_: Any) -> str:
    """Replace every formula of a page."""
    return _FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tex = html.unescape(found["tex"]).strip()
    if found["tag"] == "span":
        return convert(tex, display="inline")
    return f'<div class="formula">{convert(tex, display="block")}</div>'
