"""Pages from jinja2 templates: each is one file that needs no network, in the reader's colours."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import lpsgd
from lpsgd.lab import formatting

_TEMPLATES = Path(__file__).with_name("templates")
_FORMATS = ("cell_text", "duration", "fixed", "p_value", "percent", "setting_text", "size")


def environment(folder: Path = _TEMPLATES) -> Environment:
    """Templates of ``folder`` and the frame of every page; whatever they print is escaped."""
    made = Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {name: getattr(formatting, name) for name in _FORMATS}
    made.globals["MISSING"] = formatting.MISSING
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made


def render_page(
    name: str, folder: Path = _TEMPLATES, *, libraries: Sequence[str] = (), **values: object
) -> str:
    """The page of ``name``.html in ``folder``, with ``name``.css and ``name``.js if they exist.

    ``libraries`` are sources of scripts that run before the page's own.
    """

    def read(path: Path) -> str:
        return path.read_text(encoding="utf-8") if path.exists() else ""

    own = [read(_TEMPLATES / "theme.js"), *libraries, read(folder / f"{name}.js")]
    scripts = [script for script in own if script]
    return (
        environment(folder)
        .get_template(f"{name}.html")
        .render(
            values,
            policy=_content_policy(scripts),
            style=Markup(read(_TEMPLATES / "frame.css") + read(folder / f"{name}.css")),
            scripts=[Markup(script) for script in scripts],
            version=lpsgd.__version__,
        )
    )


def _content_policy(scripts: Sequence[str]) -> str:
    """A content security policy: no network at all, and no script but the page's own."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
