"""The search space: for each competitor the settings to choose from, read from TOML.

::

    [sgd]
    lr = { low = 1e-3, high = 1.0, log = true, points = 7 }   # a range
    momentum = [0.0, 0.9]                                      # choices
    weight_decay = 5e-4                                        # fixed

    [lpsgdm-rms]                # a label of its own for a second space of the same optimizer
    optimizer = "lpsgdm"
    normalize = "rms"
    lr = { low = 1e-4, high = 1e-1, log = true, points = 7 }

The paper's grids (`lpsgd.lab.paper.grid`) are such a space.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from lpsgd._suggest import unknown
from lpsgd.lab.errors import UserError
from lpsgd.lab.store.jsonio import encode
from lpsgd.peers import factory, grammar

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

PAPER = "paper"
_RANGE_KEYS = ("low", "high", "log", "step", "points")
_MOST_POINTS = 10_000
_LARGEST_WHOLE = 2**53  # beyond it samplers round
_LARGEST_FLOAT = 10**300
_MOST_TRIED = 500  # combinations
_MOST_BYTES = 160  # of a label


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
        """The same for optuna."""
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
        if step is None or (self.high - self.low) / step > _MOST_POINTS:
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
        """What the sampler says is the value."""
        return name

    def name(self, value: Any) -> Any:
        """And the other way round."""
        return value

    def distribution(self) -> BaseDistribution:
        """The same for optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            high = self.high if self.log else (self.grid() or [self.high])[-1]
            return IntDistribution(int(self.low), int(high), self.log, int(self.step or 1))
        high = self.high if self.step is None else (self.grid() or [self.high])[-1]
        return FloatDistribution(self.low, high, self.log, self.step)

    def to_json(self) -> Any:
        """A plain description."""
        given = {name: getattr(self, name) for name in _RANGE_KEYS}
        return {name: value for name, value in given.items() if value not in (None, False)}

    def ends(self) -> tuple[Any, Any]:
        """The smallest and the largest value."""
        return self.low, self.high


Choice: TypeAlias = "Choices | Range"


@dataclass(frozen=True)
class Competitor:
    """One row of the result: an optimizer, what is fixed and what is searched."""

    label: str
    optimizer: str
    fixed: Mapping[str, Any]
    searched: Mapping[str, Choice]

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

    def to_json(self) -> dict[str, Any]:
        """A plain description: two spaces are equal where these are."""
        return {
            "optimizer": self.optimizer,
            "fixed": encode(dict(self.fixed)),
            "searched": {name: choice.to_json() for name, choice in self.searched.items()},
        }


def read_space(
    text: str, *, only: Iterable[str] | None = None, allow_import: bool = False
) -> list[Competitor]:
    """The competitors of ``paper`` or of a TOML file; ``only`` keeps some labels of them."""
    source = f"--space {text}"
    if text == PAPER and not Path(text).exists():
        from lpsgd.lab.paper.grid import load_space

        tables: dict[str, Any] = dict(load_space())
    else:
        tables = _read_file(Path(text), source)
    return parse_space(tables, source=source, only=only, allow_import=allow_import)


def parse_space(
    tables: Mapping[str, Any],
    *,
    source: str = "space",
    only: Iterable[str] | None = None,
    allow_import: bool = False,
) -> list[Competitor]:
    """Check the tables of a space; every mistake is a UserError that says where it is."""
    wanted = list(tables if only is None else only)
    for label in wanted:
        if label not in tables:
            raise UserError(f"--optimizers: {unknown('label', label, tables)} in {source}")
    if not wanted:
        raise UserError(f"{source}: no optimizer; write a table such as [sgd] with its settings")
    made = [_competitor(label, tables[label], source, allow_import) for label in wanted]
    safe = {c.label.casefold() for c in made}  # labels name files, also where case does not count
    if len(safe) < len(made):
        raise UserError(f"{source}: two labels differ in nothing that a file name can hold")
    return made


def _read_file(path: Path, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{source}: {error.strerror}; write a TOML file or {PAPER!r}") from None
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of numbers without end
        raise UserError(f"{source}: not a TOML file: {error}") from None


def _competitor(label: str, table: Any, source: str, allow_import: bool) -> Competitor:
    where = f"{source}: [{label}]"
    if not isinstance(table, Mapping):
        raise UserError(f"{source}: {label} = {table!r} is outside a table; write [{label}] first")
    settings = dict(table)
    optimizer = settings.pop("optimizer", label)
    if not isinstance(optimizer, str):
        raise UserError(f"{where}: optimizer={optimizer!r} is not a name")
    if grammar.is_import_path(optimizer) and not allow_import:
        raise UserError(
            f"{where}: optimizer={optimizer!r} would import and run code of that package; "
            "give --allow-import if you trust this file"
        )
    read = {name: _choice(value, f"{where} {name}") for name, value in settings.items()}
    competitor = Competitor(
        _file_safe(label, where),
        optimizer,
        fixed={n: c.values[0] for n, c in read.items() if _is_fixed(c)},
        searched={n: c for n, c in read.items() if not _is_fixed(c)},
    )
    if not competitor.searched:
        raise UserError(f"{where}: nothing to search; give a setting several values or a range")
    _try_out(competitor, where)
    return competitor


def _is_fixed(choice: Choice) -> TypeGuard[Choices]:
    return isinstance(choice, Choices) and len(choice.values) == 1


def _file_safe(label: str, where: str) -> str:
    safe = re.sub(r"[^\w.=+-]+", "-", label).strip("-.")
    # file systems allow 255 bytes for a name, which is longer than a label
    if not safe or len(safe) > 80 or len(safe.encode()) > _MOST_BYTES:
        raise UserError(
            f"{where}: a label has 1 to 80 letters and digits, at most {_MOST_BYTES} bytes of UTF-8"
        )
    return safe


def _choice(value: Any, where: str) -> Choice:
    if isinstance(value, Mapping):
        return _range(value, where)
    if not isinstance(value, list):
        return Choices((_plain(value, where),))
    if not value:
        raise UserError(f"{where}: an empty list; give at least one value")
    found = Choices(tuple(_plain(item, where) for item in value))
    if len(set(map(str, found.grid()))) < len(value) or len(set(found.grid())) < len(value):
        raise UserError(f"{where}: a value is listed twice in {value!r}")
    return found


def _plain(value: Any, where: str) -> Any:
    inner = value if isinstance(value, list) else [value]
    if not all(isinstance(item, bool | int | float | str) for item in inner):
        raise UserError(f"{where}: {value!r} is not a number, a string, true, false or their list")
    if any(isinstance(item, float) and math.isnan(item) for item in inner):
        raise UserError(f"{where}: nan is not a value")
    if any(isinstance(item, int) and abs(item) > _LARGEST_FLOAT for item in inner):
        raise UserError(f"{where}: a number is too large")
    return value


def _range(table: Mapping[str, Any], where: str) -> Range:
    for key in table:
        if key not in _RANGE_KEYS:
            raise UserError(f"{where}: {unknown('key', key, _RANGE_KEYS)}")
    for key in ("low", "high"):
        if key not in table:
            raise UserError(f"{where}: a range needs {key}; write {{ low = ..., high = ... }}")
    for key in ("low", "high", "step"):
        _check_number(key, table.get(key, 1), where)
    made = Range(**table)
    if not isinstance(made.log, bool):
        raise UserError(f"{where}: log={made.log!r} is not true or false")
    if not made.low < made.high:
        raise UserError(f"{where}: low={made.low} must be below high={made.high}")
    if made.log and made.low <= 0:
        raise UserError(f"{where}: low={made.low} must be above 0 for a logarithmic range")
    if made.step is not None:
        _check_step(made, where)
    if made.points is not None:
        _check_points(made, where)
    elif made.step is not None and (made.high - made.low) / made.step > _MOST_POINTS:
        raise UserError(f"{where}: step={made.step} gives more than {_MOST_POINTS} points")
    return made


def _check_number(key: str, value: Any, where: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # compared first: a whole number may be too large for a float; NaN compares as false
    if not number or not abs(value) <= _LARGEST_FLOAT:
        raise UserError(f"{where}: {key}={str(value)[:40]} is not a finite number")
    if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
        raise UserError(
            f"{where}: {key}={value} is too large for a whole number; write {value:.1e}"
        )


def _check_step(made: Range, where: str) -> None:
    assert made.step is not None
    if made.log:
        raise UserError(f"{where}: a logarithmic range has no step; give points = N")
    if not 0 < made.step <= made.high - made.low:
        raise UserError(f"{where}: step={made.step} must be above 0 and at most high - low")
    if made.whole and not isinstance(made.step, int):
        raise UserError(f"{where}: step={made.step} must be whole, as low and high are")
    if made.points is not None:
        raise UserError(f"{where}: give step or points, not both")


def _check_points(made: Range, where: str) -> None:
    points = made.points
    if isinstance(points, bool) or not isinstance(points, int) or not 2 <= points <= _MOST_POINTS:
        raise UserError(
            f"{where}: points={points!r} must be a whole number from 2 to {_MOST_POINTS}"
        )


def _try_out(competitor: Competitor, where: str) -> None:
    """Build the optimizer with every value, so that a wrong one is found before training.

    In every combination, unless these are too many: some values exclude each other.
    """
    tried: dict[str, list[Any]] = {
        name: list(choice.values if isinstance(choice, Choices) else choice.ends())
        for name, choice in competitor.searched.items()
    }
    lrs = [*tried.get("lr", []), *([competitor.fixed["lr"]] if "lr" in competitor.fixed else [])]
    for lr in lrs:
        if isinstance(lr, bool) or not isinstance(lr, int | float) or not lr > 0:
            raise UserError(f"{where} lr: {lr!r} must be above 0: with 0 nothing is learnt")
        if not math.isfinite(lr):
            raise UserError(f"{where} lr: {lr!r} is not a finite number")
    first = {name: values[0] for name, values in tried.items()}
    combinations = [first, *({**first, name: v} for name in tried for v in tried[name][1:])]
    if math.prod(map(len, tried.values())) <= _MOST_TRIED:
        combinations = [
            dict(zip(tried, chosen, strict=True)) for chosen in product(*tried.values())
        ]
    try:
        for chosen in combinations:
            factory.try_out(competitor.optimizer, {**competitor.fixed, **chosen})
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _name(value: Any) -> Any:
    """What optuna's storages keep as a choice: numbers as they are, other values as text."""
    if isinstance(value, list) or (isinstance(value, float) and not math.isfinite(value)):
        return json.dumps(encode(value))
    return value
