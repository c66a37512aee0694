"""TOML, read and written here alone."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import UserError


def read_toml(path: Path, source: str) -> dict[str, Any]:
    """The tables of a file; ``source`` says in an error which option named it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{source}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of numbers without end
        raise UserError(f"{source}: not a TOML file: {error}") from None


def package_toml(package: str, name: str) -> dict[str, Any]:
    """The tables of a file that comes with ``package``."""
    return tomllib.loads((resources.files(package) / name).read_text(encoding="utf-8"))


def toml_lines(values: Mapping[str, Any]) -> list[str]:
    """A line ``key = value`` for each value; what TOML cannot say (None) is left out.

    >>> toml_lines({"lr": 0.1, "betas": [0.9, 0.99], "clip": None})
    ['lr = 0.1', 'betas = [0.9, 0.99]']
    """
    return [
        f"{toml_key(name)} = {toml_value(value)}"
        for name, value in values.items()
        if value is not None
    ]


def toml_value(value: Any) -> str:
    """``value`` (a number, a string, a truth value or a list of them) as TOML.

    >>> toml_value([0.9, 1e-05]), toml_value(True), toml_value("cosine"), toml_value(float("inf"))
    ('[0.9, 1e-05]', 'true', '"cosine"', 'inf')
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        pairs = (f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def toml_key(name: str) -> str:
    """``name`` as a key, quoted where it must be.

    >>> toml_key("lr"), toml_key("torch.optim:SGD")
    ('lr', '"torch.optim:SGD"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    # JSON's escapes but two: TOML knows no pairs of surrogates, and wants DEL escaped
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
