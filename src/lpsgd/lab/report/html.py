"""Building HTML: every plain string is escaped, only ``Html`` is taken as it is."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from typing import Any


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: object) -> Html:
    """``<tag attributes>children</tag>``; an attribute that is None is left out.

    >>> element("td", "a < b", class_="number", data_value=3)
    '<td class="number" data-value="3">a &lt; b</td>'
    """
    opening = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{opening}>{join(*children)}</{tag}>")


def join(*parts: str) -> Html:
    """The parts one after another, those that are not ``Html`` escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def embedded_json(value: Any) -> Html:
    """``value`` as JSON for the inside of a script element, which no text in it can end.

    >>> embedded_json({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def content_policy(scripts: Sequence[str]) -> str:
    """A content security policy: no network at all, and no script but the page's own."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
