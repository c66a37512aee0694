"""JSON, read and written here alone: what a damaged file says, and the numbers that JSON lacks.

Files are strict JSON: NaN and the infinities travel as the strings "nan", "inf", "-inf".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from lpsgd.lab.errors import UserError
from lpsgd.lab.formatting import printable
from lpsgd.lab.store.disk.files import write_text

Model = TypeVar("Model", bound=BaseModel)

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
    return float(value)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` as indented JSON, atomically."""
    text = json.dumps(encode(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def json_line(value: Any) -> str:
    """``value`` as one line of a .jsonl file."""
    return json.dumps(encode(value), allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """The value in ``path``; FileNotFoundError if there is no such file."""
    try:
        return _printable(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {str(path)!r}: {error}") from error


def _printable(value: Any) -> Any:
    """``value`` without control characters, at any depth.

    What is stored is shown in terminals sooner or later, and a folder may come from anybody: no
    escape sequence in it may move the cursor or set a title. Nothing that is written here has any.

    >>> _printable({"label": "sgd\x1b[2J"})
    {'label': 'sgd[2J'}
    """
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in ``path``; None if there is no such file."""
    try:
        return _as_object(read_json(path), repr(str(path)))
    except FileNotFoundError:
        return None


def read_model(path: Path, kind: type[Model]) -> Model | None:
    """The object in ``path`` with its types checked; None if there is no such file."""
    try:
        values = read_object(path)
        return None if values is None else kind.model_validate(values)
    except ValidationError as error:
        raise UserError(f"cannot read {str(path)!r}: {explain(error)}") from None


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a .jsonl file, with its place in words for messages; none if no file is there.

    What follows the last newline is a line that is being written at this moment.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error}") from error
    for place, line in enumerate(lines, start=1):
        where = f"{str(path)!r}, line {place}"
        try:
            value = _printable(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise UserError(f"cannot read {where}: {error}") from error
        yield where, _as_object(value, where)


def explain(error: ValidationError) -> str:
    """What is wrong with which field, on one line."""
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{where}={problem['input']!r}: {message}" if where else message)
    return "; ".join(lines)


def _as_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"cannot read {where}: expected a JSON object")
    return value
