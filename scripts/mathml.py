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


# |x| and ‖x‖, which a browser would space like the relation "divides"
_BAR = re.compile(r"<mo(?P<attributes>[^>]*)>(?P<bar>&#x0007C;|&#x02016;)</mo>")


def on_page_content(content: str, **_: Any) -> str:
    """Replace every formula of a page."""
    return _FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tex = html.unescape(found["tex"]).strip()
    inline = found["tag"] == "span"
    formula = convert(tex, display="inline" if inline else "block")
    formula = _BAR.sub(r'<mo\g<attributes> lspace="0" rspace="0">\g<bar></mo>', formula)
    return formula if inline else f'<div class="formula">{formula}</div>'
