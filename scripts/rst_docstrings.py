"""For the site: the docstrings' few reStructuredText forms as Markdown, which mkdocstrings reads.

``.. math::`` blocks, ``:math:``, references such as ``:class:`~lpsgd.CosineP``` and examples after
``>>>`` are what the docstrings use.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe


def to_markdown(text: str) -> str:
    """The text with maths as arithmatex has it, references as code, and examples in fences."""
    text = re.sub(
        r"^( *)\.\. math::\n((?:\1 +.*\n?|\n)+)",
        lambda match: _display(match[1], match[2]),
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r":math:`([^`]*)`", lambda match: f"\\({' '.join(match[1].split())}\\)", text)
    text = re.sub(r"^( *)(>>> (?:.*\n?)(?:\1.*\S.*\n?)*)", _fence, text, flags=re.MULTILINE)
    return re.sub(r":(?:attr|class|func|meth|mod):`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)


def _fence(match: re.Match[str]) -> str:
    indent, example = match[1], match[2].rstrip("\n")
    return f"{indent}```pycon\n{indent}{example}\n{indent}```\n"


def _display(indent: str, block: str) -> str:
    tex = textwrap.dedent(block).strip()
    if "&" in tex:
        tex = f"\\begin{{align*}}\n{tex}\n\\end{{align*}}"
    lines = ["", "\\[", *tex.splitlines(), "\\]", ""]
    return "\n".join(indent + line if line else line for line in lines) + "\n"


class RstDocstrings(griffe.Extension):
    """Rewrites each docstring as it is read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
