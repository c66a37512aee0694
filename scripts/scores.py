"""What screening and study share about scores: units, the good region of rates, a panel of dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from lpsgd.lab.report import style

UNITS = {"top1": ("test accuracy, %", 2), "nll": ("test NLL, nats", 3)}


def better(metric: str) -> int:
    """1 where high scores are good, else -1."""
    return 1 if metric == "top1" else -1


def good_width(merits: Mapping[float, float], lost: float) -> tuple[float, bool]:
    """The factor between the lowest and the highest neighbouring rate that loses at most ``lost``.

    ``merits`` are by learning rate, the higher the better. True if the region reaches the lowest or
    highest rate that was tried.
    """
    rates = sorted(merits)
    low = high = max(range(len(rates)), key=lambda i: merits[rates[i]])
    enough = merits[rates[low]] - lost
    while low > 0 and merits[rates[low - 1]] >= enough:
        low -= 1
    while high < len(rates) - 1 and merits[rates[high + 1]] >= enough:
        high += 1
    return rates[high] / rates[low], low == 0 or high == len(rates) - 1


def width_text(width: float, at_least: bool) -> str:
    """The factor as a table shows it."""
    return f"{'≥ ' if at_least else ''}{width:.0f}×"


class Dot(NamedTuple):
    """A mean with its interval, in a line of its own."""

    label: str
    mean: float | None
    low: float | None
    high: float | None
    colour: str


def draw_dots(axes: Axes, dots: Sequence[Dot], reference: float | None, xlabel: str) -> None:
    """The first on top; a dashed line at ``reference``."""
    if reference is not None:
        axes.axvline(reference, color=style.MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
    for place, dot in enumerate(dots):
        if dot.low is not None and dot.high is not None:
            axes.plot([dot.low, dot.high], [place, place], color=dot.colour, linewidth=2.5)
        if dot.mean is not None:
            axes.plot([dot.mean], [place], "o", color=dot.colour, markersize=4)
    axes.set_yticks(range(len(dots)), [dot.label for dot in dots])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=xlabel)
