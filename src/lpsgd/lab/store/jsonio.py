"""Strict JSON for numbers that JSON lacks: they travel as the strings "nan", "inf", "-inf"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_NAMES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: Any) -> Any:
    """``value`` with every non-finite float, at any depth, replaced by its name.

    >>> encode({"p": float("inf"), "lr": [0.1]})
    {'p': 'inf', 'lr': [0.1]}
    """
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def number(value: Any) -> float | None:
    """The float that ``value`` stands for, or None if it stands for none.

    >>> number("inf"), number(3), number(None), number("sgd")
    (inf, 3.0, None, None)
    """
    if isinstance(value, str):
        return _NAMES.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else -math.inf
