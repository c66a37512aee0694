"""What competitors are called: by the user or by their settings, as folders, folded to fit."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text

from lpsgd.lab.errors import UserError
from lpsgd.peers import grammar

_LONGEST_LABEL = 120
_LONGEST_NAME = 60
_INSIDE = r"(?<=[=_])|(?<=-)(?=[A-Za-z])"  # where a long part is folded; not in 1e-2


def labels(optimizers: Sequence[str]) -> list[str]:
    """Return a distinct, file-safe label for each optimizer: its name, or else its settings.

    >>> labels(["sgd", "lpsgdm:p=4", "lpsgdm:p=6", "pytorch_optimizer:Shampoo"])
    ['sgd', 'lpsgdm-p=4', 'lpsgdm-p=6', 'Shampoo']
    >>> labels(["plain=lpsgdm:normalize=none", "scaled=lpsgdm:normalize=rms"])
    ['plain', 'scaled']
    """
    if not optimizers:
        raise UserError("--optimizers names no optimizer")
    named = [grammar.split_name(text) for text in optimizers]
    try:
        short = [
            None if name is not None else grammar.parse(spec)[0].rpartition(":")[2]
            for name, spec in named
        ]
    except ValueError as error:
        raise UserError(str(error)) from error
    found = [
        _checked(name, spec)
        if name is not None
        else file_safe(brief)
        if brief is not None and short.count(brief) == 1
        else file_safe(spec)
        for (name, spec), brief in zip(named, short, strict=True)
    ]
    seen: dict[str, str] = {}  # without regard to case, as some file systems name folders
    for label, text in zip(found, optimizers, strict=True):
        if (other := seen.get(label.casefold())) is not None:
            raise UserError(
                f"--optimizers: {other!r} and {text!r} have one label, {label!r}; name one of "
                f"them, as in other={grammar.split_name(text)[1]}"
            )
        seen[label.casefold()] = text
    return found


def _checked(name: str, spec: str) -> str:
    if name and len(name) <= _LONGEST_NAME and name == file_safe(name):
        return name
    raise UserError(
        f"--optimizers: the name {name!r} of {spec!r}: allowed are letters, digits and . _ + - "
        f"inside, at most {_LONGEST_NAME} of them"
    )


def file_safe(text: str) -> str:
    """A label that can be a folder's name, for which file systems allow 255 bytes.

    >>> file_safe("../lpsgdm:p=4"), file_safe("..")
    ('lpsgdm-p=4', '')
    """
    label = re.sub(r"[^\w.=+-]+", "-", text).strip("-.")
    if len(label.encode()) <= _LONGEST_LABEL:
        return label
    kept = label.encode()[: _LONGEST_LABEL - 9].decode(errors="ignore")
    return f"{kept}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def pieces(label: str) -> list[str]:
    """The parts of a label that belong together: it may be folded between them.

    >>> pieces("lpsgdm-lr=1e-2-weight_decay=0.1")
    ['lpsgdm-', 'lr=1e-2-', 'weight_decay=0.1']
    """
    return re.split(r"(?<=[, ])|(?<=-)(?=[a-z_]+=)", label)


def fold(label: str, width: int) -> str:
    """The label in lines of at most ``width``, folded between settings where that is enough.

    >>> print(fold("lpsgdm-lr=1e-2-weight_decay=0.1", 16))
    lpsgdm-lr=1e-2-
    weight_decay=0.1
    >>> print(fold("lpsgdm-normalized", 13))
    lpsgdm-
    normalized
    """
    lines = [""]
    for piece in pieces(label):
        # a part that is longer than the line is folded before its value or between its words
        for part in [piece] if len(piece) <= width else re.split(_INSIDE, piece):
            if lines[-1] and len((lines[-1] + part).rstrip()) > width:
                lines.append("")
            lines[-1] += part
            while len(lines[-1].rstrip()) > width:
                lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip() for line in lines)


class FoldedLabel:
    """A label in a cell of a table, which rich would break in the middle of a word."""

    def __init__(self, label: str, style: str | Style = "") -> None:
        self._label, self._style = label, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        # Text, not str: a label is never read as rich's markup
        yield Text(fold(self._label, options.max_width), style=self._style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(len, pieces(self._label))), len(self._label))
