"""A small drawing for a table's cell: dots, an interval and a mark on a shared scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lpsgd.lab.report.html import Html, element

_WIDTH, _HEIGHT, _MARGIN = 150, 22, 6


def domain(values: Iterable[float | None]) -> tuple[float, float]:
    """The range that holds all known ``values``, never empty.

    >>> domain([1.0, None, 3.0]), domain([2.0])
    ((1.0, 3.0), (1.5, 2.5))
    """
    known = [value for value in values if value is not None]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def strip(
    scale: tuple[float, float],
    *,
    title: str,
    dots: Sequence[float] = (),
    interval: tuple[float | None, float | None] = (None, None),
    mark: float | None = None,
    zero: bool = False,
) -> Html:
    """Draw ``dots`` (the seeds), ``interval`` (a bar) and ``mark`` (the mean), with a line at 0."""
    low, high = scale

    def x(value: float) -> str:
        return f"{_MARGIN + (_WIDTH - 2 * _MARGIN) * (value - low) / (high - low):.1f}"

    middle = _HEIGHT / 2
    parts = [element("title", title)]
    if zero:
        parts.append(element("line", x1=x(0), x2=x(0), y1=0, y2=_HEIGHT, class_="zero"))
    start, end = interval
    if start is not None and end is not None:
        parts.append(element("line", x1=x(start), x2=x(end), y1=middle, y2=middle, class_="bar"))
    parts += [element("circle", cx=x(dot), cy=middle, r=3, class_="dot") for dot in dots]
    if mark is not None:
        parts.append(element("circle", cx=x(mark), cy=middle, r=4.5, class_="mark"))
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return element("svg", *parts, class_="strip", viewBox=box, role="img", aria_label=title)
