"""How wide a figure is in a paper. Light: the command line checks names before anything loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError

COLUMN, TEXT = 3.5, 7.2  # inches: one column of a paper, both columns
WIDTHS = {
    "icml": 3.25,
    "icml-double": 6.75,
    "cvpr": 3.25,
    "cvpr-double": 6.875,
    "ieee": 3.5,
    "ieee-double": 7.16,
    "neurips": 5.5,
    "iclr": 5.5,
    "jmlr": 6.0,
}
"""Inches that a figure has in the templates of conferences and journals: a column, or both."""
_text_width: ContextVar[float] = ContextVar("text_width", default=TEXT)


def text_width() -> float:
    """The widest that a figure may be: what `fitting` says, else both columns of a paper."""
    return _text_width.get()


@contextmanager
def fitting(width: float | None) -> Iterator[None]:
    """Draw what is drawn inside no wider than ``width``; None changes nothing."""
    token = _text_width.set(_text_width.get() if width is None else width)
    try:
        yield
    finally:
        _text_width.reset(token)


def figure_width(text: str | None) -> float | None:
    """Inches, from a number or from the name of a template; None if nothing was asked for.

    >>> figure_width("icml"), figure_width("4.2"), figure_width(None)
    (3.25, 4.2, None)
    """
    if text is None or text in WIDTHS:
        return WIDTHS[text] if text else None
    try:
        inches = float(text)
    except ValueError:
        names = (*WIDTHS, "a number of inches")
        raise UserError(f"--figure-width: {unknown_name('template', text, names)}") from None
    if not 2 <= inches <= 20:
        raise UserError(f"--figure-width {text}: allowed are 2 to 20 inches")
    return inches
