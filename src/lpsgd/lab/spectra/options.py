"""What ``--curvature every=5,probes=2,...`` says. Light: the command line imports this."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError


@dataclass(frozen=True)
class CurvatureOptions:
    """How spectra are measured; none of this changes what training computes."""

    every: int = 5
    probes: int = 2
    lanczos: int = 64
    samples: int = 2048
    batchnorm: Literal["eval", "batch"] = "eval"
    layers: bool = False


_CHOICES: dict[str, dict[str, object]] = {
    "batchnorm": {"eval": "eval", "batch": "batch"},
    "layers": {"true": True, "false": False},
}
OPTIONS_HELP = ", ".join(f"{field.name}={field.default}" for field in fields(CurvatureOptions))


def parse_options(text: str) -> CurvatureOptions:
    """Read ``key=value,...``; what is left out has its default.

    >>> parse_options("every=10,layers=true")
    CurvatureOptions(every=10, probes=2, lanczos=64, samples=2048, batchnorm='eval', layers=True)
    """
    names = [field.name for field in fields(CurvatureOptions)]
    values: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.strip().partition("=")
        if not equals:
            raise UserError(f"--curvature {text}: write key=value,..., not {part!r}")
        if name not in names:
            raise UserError(f"--curvature {text}: {unknown_name('key', name, names)}")
        values[name] = _value(name, value)
    return CurvatureOptions(**values)  # type: ignore[arg-type]


def _value(name: str, value: str) -> object:
    if name in _CHOICES:
        if value.lower() not in _CHOICES[name]:
            raise UserError(f"--curvature: {name}={value}; allowed: {' or '.join(_CHOICES[name])}")
        return _CHOICES[name][value.lower()]
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"--curvature: {name}={value}; allowed: a whole number, 1 or more")
    return int(value)
