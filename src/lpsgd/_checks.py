"""Checks of arguments. Each error names the argument, the value and what is allowed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

Check: TypeAlias = Callable[[str, Any], None]


def _fail(name: str, value: object, allowed: str) -> None:
    raise ValueError(f"{name} must be {allowed}, got {value!r}")


def plain(value: Any) -> Any:
    """A number of numpy's as Python's own, which a strict loader of state dicts also takes."""
    if isinstance(value, numbers.Real) and not isinstance(value, int | float):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return float(value) if type(value) is not float and isinstance(value, float) else value


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_scalar_tensor(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()


def check_at_least(name: str, value: float, least: float, *, bound_name: str = "") -> None:
    """``value`` is a number no smaller than ``least``."""
    if not (_is_number(value) and value >= least):
        bound = f"{bound_name}={least}" if bound_name else f"{least}"
        _fail(name, value, f"a number >= {bound}")


def check_positive_int(name: str, value: object) -> None:
    """``value`` is a whole number from 1 up."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not (whole and value >= 1):  # type: ignore[operator]
        _fail(name, value, "a whole number >= 1")


def check_exponent(name: str, value: object) -> None:
    """``value`` is a norm exponent: a number from 2 to infinity."""
    if not (_is_number(value) and value >= 2):  # type: ignore[operator]
        _fail(name, value, "a number from 2 to inf")


def check_matrix_exponent(name: str, value: object) -> None:
    """``value`` is an exponent of singular values: from 2 to inf, or past infinity, below 0."""
    if not (_is_number(value) and (value >= 2 or -math.inf < value < 0)):  # type: ignore[operator]
        _fail(name, value, "a number from 2 to inf, or below 0 (past infinity)")


def power(name: str, value: object) -> None:
    """``value`` is alpha = 1/(p-1) of a matrix rule: above -1 and at most 1."""
    if not (_is_number(value) and -1 < value <= 1):  # type: ignore[operator]
        _fail(name, value, "a number above -1 and at most 1")


def non_negative(name: str, value: object) -> None:
    """``value`` is a finite number >= 0."""
    if not (_is_number(value) and 0 <= value < math.inf):  # type: ignore[operator]
        _fail(name, value, "a finite number >= 0")


def positive(name: str, value: object) -> None:
    """``value`` is a finite number > 0."""
    if not (_is_number(value) and 0 < value < math.inf):  # type: ignore[operator]
        _fail(name, value, "a finite number > 0")


def fraction(name: str, value: object) -> None:
    """``value`` lies in [0, 1)."""
    if not (_is_number(value) and 0 <= value < 1):  # type: ignore[operator]
        _fail(name, value, "a number in [0, 1)")


def fraction_pair(name: str, value: object) -> None:
    """``value`` is a pair of numbers in [0, 1)."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    if not (pair and all(_is_number(v) and 0 <= v < 1 for v in value)):  # type: ignore[attr-defined]
        _fail(name, value, "a pair of numbers in [0, 1)")


def closed_fraction(name: str, value: object) -> None:
    """``value`` lies in [0, 1]."""
    if not (_is_number(value) and 0 <= value <= 1):  # type: ignore[operator]
        _fail(name, value, "a number in [0, 1]")


def rate(name: str, value: object) -> None:
    """``value`` is a learning rate: a finite number >= 0 or a tensor of one element."""
    if isinstance(value, Tensor):
        if not _is_scalar_tensor(value):
            _fail(name, value, "a finite number >= 0 or a real tensor of one element")
        if value.device.type != "cpu":
            return  # looking at the value would make the host wait for the device
        non_negative(name, value.item())
    else:
        non_negative(name, value)


def flag(name: str, value: object) -> None:
    """``value`` is True or False."""
    if not isinstance(value, bool):
        _fail(name, value, "True or False")


def optional_flag(name: str, value: object) -> None:
    """``value`` is True, False or None."""
    if value is not None and not isinstance(value, bool):
        _fail(name, value, "True, False or None")


def floating_dtype(name: str, value: object, *, other: str = "") -> None:
    """``value`` is None or a floating-point dtype; torch computes in none of 8 bits."""
    if value is None:
        return
    if not (isinstance(value, torch.dtype) and value.is_floating_point):
        _fail(name, value, f"None{other} or a floating-point torch.dtype")
    elif value.itemsize < 2:
        _fail(name, value, f"None{other} or a floating-point torch.dtype of at least 16 bits")


def floating_dtype_or_int8(name: str, value: object) -> None:
    """``value`` is None, ``torch.int8`` or a floating-point dtype."""
    if value is not torch.int8:
        floating_dtype(name, value, other=", torch.int8")


def one_of(*allowed: object) -> Check:
    """A check that the value is one of ``allowed``."""

    def check(name: str, value: object) -> None:
        if not any(value is a or (isinstance(a, str) and value == a) for a in allowed):
            _fail(name, value, "one of " + ", ".join(map(repr, allowed)))

    return check


def _or_schedule(check: Check, allowed: str) -> Check:
    """A check of a p that may also be a 0-d tensor or a schedule."""

    def check_all(name: str, value: object) -> None:
        if isinstance(value, Tensor):
            if not _is_scalar_tensor(value) or value.dim() != 0:
                _fail(name, value, f"{allowed}, a real 0-d tensor, or a schedule step -> p")
            if value.device.type == "cpu":
                check(name, value.item())
        elif not callable(value):
            if not _is_number(value):
                _fail(name, value, f"{allowed}, a real 0-d tensor, or a schedule step -> p")
            check(name, value)

    return check_all


exponent_or_schedule = _or_schedule(check_exponent, "a number from 2 to inf")
matrix_exponent_or_schedule = _or_schedule(
    check_matrix_exponent, "a number from 2 to inf, or below 0 (past infinity)"
)


def schedule_or_none(name: str, value: object) -> None:
    """``value`` is None or a schedule ``step -> p``."""
    if value is not None and not callable(value):
        _fail(name, value, "None or callable")


def check_each(checks: Mapping[str, Check], settings: Mapping[str, Any]) -> None:
    """Check every setting that has a check."""
    for name, check in checks.items():
        if name in settings:
            check(name, settings[name])
