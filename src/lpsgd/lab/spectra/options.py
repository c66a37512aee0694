"""What ``--curvature every=5,probes=2,...`` says. Light: the command line imports this."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.peers.grammar import parse_settings

_Count = Annotated[int, Field(ge=1, strict=True)]


@dataclass(frozen=True)
class CurvatureOptions:
    """How spectra are measured; none of this changes what training computes.

    >>> str(CurvatureOptions(every=10))
    'every=10,probes=2,lanczos=64,samples=2048,batchnorm=eval,layers=False'
    """

    every: _Count = 5
    probes: _Count = 2
    lanczos: _Count = 64
    samples: _Count = 2048
    batchnorm: Literal["eval", "batch"] = "eval"
    layers: bool = False

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in asdict(self).items())


OPTIONS_HELP = str(CurvatureOptions()).replace(",", ", ")


def parse_options(text: str) -> CurvatureOptions:
    """Read ``key=value,...``; what is left out has its default.

    >>> parse_options("every=10,layers=true")
    CurvatureOptions(every=10, probes=2, lanczos=64, samples=2048, batchnorm='eval', layers=True)
    """
    names = [field.name for field in fields(CurvatureOptions)]
    try:
        values = parse_settings(text) if text else {}
        for name in values:
            if name not in names:
                raise ValueError(unknown_name("key", name, names))
        return CurvatureOptions(**values)
    except ValidationError as error:
        wrong = error.errors()[0]
        message = f"{wrong['loc'][0]}={wrong['input']}: {wrong['msg']}"
    except ValueError as error:
        message = str(error)
    raise UserError(f"--curvature {text}: {message}")
