"""What a sweep searches: for each competitor the settings to choose from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.disk.jsonio import encode

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANGE_KEYS = ("low", "high", "log", "step", "points")
MOST_POINTS = 10_000


@dataclass(frozen=True)
class Choices:
    """A setting that takes one of several values."""

    values: tuple[Any, ...]

    def grid(self) -> list[Any]:
        """The names of the values, for the sampler; `value` turns them back."""
        return [_name(value) for value in self.values]

    def value(self, name: Any) -> Any:
        """The value that the sampler's ``name`` stands for."""
        return self.values[self.grid().index(name)]

    def name(self, value: Any) -> Any:
        """The sampler's name of ``value``."""
        return _name(value)

    def distribution(self) -> BaseDistribution:
        """Optuna's description of the same values."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.grid())

    def to_json(self) -> Any:
        """A plain description."""
        return encode(list(self.values))

    def ends(self) -> tuple[Any, Any] | None:
        """The smallest and the largest value, if there are two numbers or more."""
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)
        return (min(self.values), max(self.values)) if numbers and len(self.values) > 1 else None


@dataclass(frozen=True)
class Range:
    """A number between two others, both included; whole if both of these are.

    ``points`` (evenly spaced, in the logarithm if ``log``) or ``step`` make it a grid.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    points: int | None = None

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def grid(self) -> list[Any] | None:
        """The points of the grid, or None where none is defined."""
        if self.points is not None:
            low, high = (math.log(self.low), math.log(self.high)) if self.log else self.ends()
            inner = [low + (high - low) * k / (self.points - 1) for k in range(1, self.points - 1)]
            found = self._rounded([math.exp(x) if self.log else x for x in inner])
            return sorted({round(x) for x in found}) if self.whole else found
        step = self.step or (1 if self.whole and not self.log else None)
        if step is None or (self.high - self.low) / step > MOST_POINTS:
            return None
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return [
            self.low + k * step if self.whole else float(f"{self.low + k * step:.12g}")
            for k in range(count)
        ]

    def _rounded(self, inner: list[float]) -> list[float]:
        """The ends and the points between them, with few digits, none twice and none outside."""
        # four digits: what a person would have typed, and the same on every machine
        for digits in (4, 8, 12):
            found = [self.low, *(float(f"{x:.{digits}g}") for x in inner), self.high]
            if all(a < b for a, b in pairwise(found)):
                return found
        # the ends lie too close for so many points
        return sorted({min(max(x, self.low), self.high) for x in found})

    def value(self, name: Any) -> Any:
        """The value that the sampler's ``name`` stands for: the number itself."""
        return name

    def name(self, value: Any) -> Any:
        """The sampler's name of ``value``: the number itself."""
        return value

    def distribution(self) -> BaseDistribution:
        """Optuna's description of the same values."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            high = self.high if self.log else (self.grid() or [self.high])[-1]
            return IntDistribution(int(self.low), int(high), self.log, int(self.step or 1))
        high = self.high if self.step is None else (self.grid() or [self.high])[-1]
        return FloatDistribution(self.low, high, self.log, self.step)

    def to_json(self) -> Any:
        """A plain description."""
        given = {name: getattr(self, name) for name in RANGE_KEYS}
        return {name: value for name, value in given.items() if value not in (None, False)}

    def ends(self) -> tuple[Any, Any]:
        """The smallest and the largest value."""
        return self.low, self.high


SearchedSetting: TypeAlias = "Choices | Range"


@dataclass(frozen=True)
class Competitor:
    """One row of the result: an optimizer, what is fixed and what is searched."""

    label: str
    optimizer: str
    fixed: Mapping[str, Any]
    searched: Mapping[str, SearchedSetting]

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The optimizer's settings for what the sampler chose."""
        chosen = {name: self.searched[name].value(params[name]) for name in self.searched}
        return {**self.fixed, **chosen}

    def grids(self) -> dict[str, list[Any]]:
        """The points of each searched setting, as names for the sampler."""
        found = {}
        for name, choice in self.searched.items():
            points = choice.grid()
            if points is None:
                raise UserError(
                    f"{self.label}: {name} is a range without points, which a grid needs: add "
                    "points = N (or step), give a list, or use --sampler tpe or random"
                )
            found[name] = points
        return found

    def combinations(self) -> int | None:
        """How many there are of the searched settings; None if one is a range without points."""
        grids = [choice.grid() for choice in self.searched.values()]
        known = [len(points) for points in grids if points is not None]
        return math.prod(known) if len(known) == len(grids) else None

    def to_json(self) -> dict[str, Any]:
        """A plain description: two spaces are equal where these are."""
        return {
            "optimizer": self.optimizer,
            "fixed": encode(dict(self.fixed)),
            "searched": {name: choice.to_json() for name, choice in self.searched.items()},
        }


def _name(value: Any) -> Any:
    """What optuna's storages keep as a choice: numbers as they are, other values as text."""
    if isinstance(value, list) or (isinstance(value, float) and not math.isfinite(value)):
        return json.dumps(encode(value))
    return value
