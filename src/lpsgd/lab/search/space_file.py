"""How a search space is written in TOML, and every mistake that such a file can hold.

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

import math
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, TypeGuard

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.lab.labels import file_safe
from lpsgd.lab.search.space import (
    MOST_POINTS,
    RANGE_KEYS,
    Choices,
    Competitor,
    Range,
    SearchedSetting,
)
from lpsgd.lab.store.disk.tomlio import read_toml
from lpsgd.peers import factory, grammar, registry

PAPER_SPACE = "paper"
_MOST_TRIED = 500  # combinations
_LONGEST_LABEL = 80


def read_space(
    text: str, *, only: Iterable[str] | None = None, allow_import: bool = False
) -> list[Competitor]:
    """The competitors of ``paper`` or of a TOML file; ``only`` keeps some labels of them."""
    source = f"--space {text}"
    if text == PAPER_SPACE and not Path(text).exists():
        from lpsgd.lab.paper.grid import load_space

        tables: dict[str, Any] = dict(load_space())
    else:
        tables = read_toml(Path(text), source)
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
            raise UserError(f"--optimizers: {unknown_name('label', label, tables)} in {source}")
    if not wanted:
        raise UserError(f"{source}: no optimizer; write a table such as [sgd] with its settings")
    made = [_competitor(label, tables[label], source, allow_import) for label in wanted]
    for label, competitor in zip(wanted, made, strict=True):  # when all names have been checked
        _try_out(competitor, f"{source}: [{label}]")
    safe = {c.label.casefold() for c in made}  # labels name files, also where case does not count
    if len(safe) < len(made):
        raise UserError(f"{source}: two labels differ in nothing that a file name can hold")
    return made


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
    read = {name: _setting(value, f"{where} {name}") for name, value in settings.items()}
    competitor = Competitor(
        _file_safe(label, where),
        optimizer,
        fixed={n: c.values[0] for n, c in read.items() if _is_fixed(c)},
        searched={n: c for n, c in read.items() if not _is_fixed(c)},
    )
    if not competitor.searched:
        raise UserError(f"{where}: nothing to search; give a setting several values or a range")
    try:
        registry.check_settings(optimizer, {**competitor.fixed, **first_values(competitor)})
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return competitor


def _is_fixed(choice: SearchedSetting) -> TypeGuard[Choices]:
    return isinstance(choice, Choices) and len(choice.values) == 1


def _file_safe(label: str, where: str) -> str:
    safe = file_safe(label)
    if not safe or len(safe) > _LONGEST_LABEL:
        raise UserError(f"{where}: a label has 1 to {_LONGEST_LABEL} letters and digits")
    return safe


def _setting(value: Any, where: str) -> SearchedSetting:
    if isinstance(value, Mapping):
        return _range(value, where)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UserError(f"{where}: an empty list; give at least one value")
    for each in values:
        _check_value(each, where)
    found = Choices(tuple(values))
    if len(set(found.grid())) < len(values):
        raise UserError(f"{where}: a value is listed twice in {value!r}")
    return found


def _check_value(value: Any, where: str) -> None:
    inner = value if isinstance(value, list) else [value]
    if not all(isinstance(item, bool | int | float | str) for item in inner):
        raise UserError(f"{where}: {value!r} is not a number, a string, true, false or their list")
    if any(isinstance(item, float) and math.isnan(item) for item in inner):
        raise UserError(f"{where}: nan is not a value")


def _range(table: Mapping[str, Any], where: str) -> Range:
    for key in table:
        if key not in RANGE_KEYS:
            raise UserError(f"{where}: {unknown_name('key', key, RANGE_KEYS)}")
    for key in ("low", "high"):
        if key not in table:
            raise UserError(f"{where}: a range needs {key}; write {{ low = ..., high = ... }}")
    for key in ("low", "high", "step", "points"):
        if not _is_finite(table.get(key, 1)):
            raise UserError(f"{where}: {key}={table[key]!r} is not a finite number")
    made = Range(**table)
    low, high, step, points = made.low, made.high, made.step, made.points
    for wrong, message in (
        (not isinstance(made.log, bool), f"log={made.log!r} is not true or false"),
        (not low < high, f"low={low} must be below high={high}"),
        (made.log and low <= 0, f"low={low} must be above 0 for a logarithmic range"),
        (step and made.log, "a logarithmic range has no step; give points = N"),
        (step and points, "give step or points, not both"),
        (
            step is not None and not 0 < step <= high - low,
            f"step={step} must be above 0 and at most high - low",
        ),
        (
            step and made.whole and not isinstance(step, int),
            f"step={step} must be whole, as low and high are",
        ),
        (
            step and (high - low) / step > MOST_POINTS,
            f"step={step} gives more than {MOST_POINTS} points",
        ),
        (
            points is not None and not (isinstance(points, int) and 2 <= points <= MOST_POINTS),
            f"points={points} must be a whole number from 2 to {MOST_POINTS}",
        ),
    ):
        if wrong:
            raise UserError(f"{where}: {message}")
    return made


def _is_finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _values_to_try(competitor: Competitor) -> dict[str, list[Any]]:
    return {
        name: list(choice.values if isinstance(choice, Choices) else choice.ends())
        for name, choice in competitor.searched.items()
    }


def first_values(competitor: Competitor) -> dict[str, Any]:
    """A value for each searched setting."""
    return {name: values[0] for name, values in _values_to_try(competitor).items()}


def _try_out(competitor: Competitor, where: str) -> None:
    """Build the optimizer with every value, so that a wrong one is found before training.

    In every combination, unless these are too many: some values exclude each other.
    """
    tried = _values_to_try(competitor)
    lrs = [*tried.get("lr", []), *([competitor.fixed["lr"]] if "lr" in competitor.fixed else [])]
    for lr in lrs:
        if not _is_finite(lr) or lr <= 0:
            raise UserError(f"{where} lr: {lr!r} must be a finite number above 0")
    first = first_values(competitor)
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
