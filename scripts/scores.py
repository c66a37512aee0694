"""What screening and study share about scores: units, and how wide a good region of rates is."""

from __future__ import annotations

from collections.abc import Mapping

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
