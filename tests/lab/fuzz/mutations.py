"""Random damage to bytes and to plain values; a seed decides it."""

from __future__ import annotations

import json
import random
import string
from typing import Any

WEIRD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**24,
    10**400,
    -0.5,
    1e308,
    1e-320,
    "inf",
    "nan",
    "",
    "..",
    "/etc",
    "$x^$",
    "\x1b[2J\x07",
    "\0",
    "é\u202e\ud800",
    "os:system",
    "a" * 3000,
    [],
    [1],
    {},
    {"a": [None]},
    [[[[[]]]]],
]
ALPHABET = string.ascii_letters + string.digits + "=:,.-_()[]{}'\"\\/$%#é\0\n\t "


def damage_bytes(draw: random.Random, data: bytes) -> bytes:
    """Some of it lost, doubled, changed or replaced."""
    start = draw.randrange(len(data) + 1)
    end = min(len(data), start + draw.choice((1, 1, 2, 8, 100)))
    kind = draw.randrange(6)
    if kind == 0:
        return data[:start]
    if kind == 1:
        return data[:start] + data[end:]
    if kind == 2:
        return data[:end] + data[start:]
    if kind == 3:
        return draw.choice((b"", b"[" * 100_000, b"\xff\xfe\0", b"null", b"[1]", b"{}", b'{"a":'))
    return data[:start] + draw.randbytes(end - start) + data[end:]


def damage_value(draw: random.Random, value: Any) -> Any:
    """A plain value with something weird in one place."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        changed = dict(value)
        if draw.random() < 0.15:
            del changed[key]
        else:
            changed[key] = damage_value(draw, value[key])
        return changed
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        return [*value[:place], damage_value(draw, value[place]), *value[place + 1 :]]
    return draw.choice(WEIRD)


def damage_json(draw: random.Random, data: bytes) -> bytes:
    """A JSON or .jsonl file with a weird value in one place."""
    lines = data.splitlines(keepends=True)
    try:
        value = json.loads(data)
    except ValueError:
        place = draw.randrange(len(lines))
        changed = json.dumps(damage_value(draw, json.loads(lines[place]))).encode() + b"\n"
        return b"".join([*lines[:place], changed, *lines[place + 1 :]])
    return json.dumps(damage_value(draw, value)).encode()


def text(draw: random.Random, most: int = 30) -> str:
    """Characters at random, with a liking for those that grammars use."""
    return "".join(draw.choice(ALPHABET) for _ in range(draw.randrange(most)))
