"""How an optimizer is written as text: ``lpsgdm:lr=1e-3,p=6`` is a name and its settings.

A name is a registered one or an import path, ``package.module:Name``. In a list of several, each
may be given a name of the user's own: ``ours=lpsgdm:lr=1e-3``.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

_COMMA = re.compile(r",(?![^(\[]*[)\]])")  # not inside parentheses


def is_import_path(name: str) -> bool:
    """Tell whether ``name`` looks like ``package.module:Name``."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name) is not None


def names_import_path(text: str) -> bool:
    """Tell whether an import path stands anywhere in a text like that of ``--optimizers``.

    >>> names_import_path("sgd:lr=1,my.module:Name"), names_import_path("sgd:lr=1,lion:lr=2")
    (True, False)
    """
    return re.search(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(?![\w.]*\s*=)", text) is not None


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``NAME`` or ``NAME:setting=value,...`` as written on the command line.

    >>> parse("lpsgdm:lr=1e-3,p=inf,p_schedule=constant")
    ('lpsgdm', {'lr': 0.001, 'p': inf, 'p_schedule': 'constant'})
    >>> parse("package.module:Name:betas=(0.9,0.99)")
    ('package.module:Name', {'betas': [0.9, 0.99]})
    """
    match = re.fullmatch(r"([\w.-]+(?::[A-Za-z_][\w.]*(?![\w.]*\s*=))?)(?::(.*))?", text.strip())
    if match is None:
        raise ValueError(
            f"cannot read the optimizer {text!r}: write NAME or NAME:setting=value,setting=value"
        )
    name, rest = match.groups()
    return name, parse_settings(rest) if rest else {}


def split_name(text: str) -> tuple[str | None, str]:
    """Split ``NAME=OPTIMIZER``; without a name it is None.

    >>> split_name("ours=lpsgdm:lr=1e-3"), split_name("lpsgdm:lr=1e-3")
    (('ours', 'lpsgdm:lr=1e-3'), (None, 'lpsgdm:lr=1e-3'))
    """
    match = re.fullmatch(r"([^:=]*)=(.*)", text.strip())
    return (match[1].strip(), match[2].strip()) if match else (None, text.strip())


def split_list(text: str, known: Container[str]) -> list[str]:
    """Split several optimizers, each with its settings and perhaps a name of its own.

    ``x=y`` is a setting of the optimizer before it, unless y begins with one of the ``known``
    optimizers or has a colon: then it begins another one, named x. An import path's setting may
    be an import path too.

    >>> split_list("sgd,lpsgdm:lr=1e-3,p=6,ours=lpsgdm:p=4,adamw", ["lpsgdm"])
    ['sgd', 'lpsgdm:lr=1e-3,p=6', 'ours=lpsgdm:p=4', 'adamw']
    """
    found: list[str] = []
    for part in filter(None, map(str.strip, _COMMA.split(text))):
        if found and _is_setting(part, split_name(found[-1])[1], known):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _is_setting(part: str, before: str, known: Container[str]) -> bool:
    key, equals, value = (piece.strip() for piece in part.partition("="))
    if not equals or ":" in key or value.partition(":")[0] in known:
        return False
    first_setting = before.partition("=")[0]
    if first_setting == before:  # none yet; a number cannot be an optimizer
        return not isinstance(parse_value(value), str)
    return ":" not in value or first_setting.count(":") > 1


def parse_settings(text: str) -> dict[str, Any]:
    """Read ``setting=value,setting=value``; parentheses hold a list."""
    settings: dict[str, Any] = {}
    for part in _COMMA.split(text):
        key, value = parse_pair(part)
        if key in settings:
            raise ValueError(f"the setting {key!r} is given twice in {text!r}")
        settings[key] = parse_value(value)
    return settings


def parse_pair(text: str) -> tuple[str, str]:
    """Split ``key=value``; every text of that form is read here.

    >>> parse_pair("fig4-p = 2,4,6")
    ('fig4-p', '2,4,6')
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise ValueError(f"cannot read {text!r}: write key=value")
    return key, value


def parse_value(text: str) -> Any:
    """Read a number, true, false, none, a list in parentheses, or else a string."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith(("(", "[")) and text.endswith((")", "]")):
        return [parse_value(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
