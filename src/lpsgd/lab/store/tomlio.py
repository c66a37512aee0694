"""Values as TOML writes them; Python reads TOML and does not write it."""

from __future__ import annotations

import json
import math
import re
from typing import Any


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
