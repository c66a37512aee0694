"""Optimizers that are given as Python objects: the text by which a recipe names them.

A class or a function that can be imported is named by its import path. What one session alone has
(a class of a notebook, a lambda) is remembered here, so that ``lpsgd.lab.own.optimizers:Name``
is an import path like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lpsgd.lab.errors import UserError
from lpsgd.peers import grammar, registry
from lpsgd.peers.description import load

_remembered: dict[str, Callable[..., Any]] = {}


def remember(found: Mapping[str, Callable[..., Any]]) -> None:
    """Let the import paths of this module name these objects, as they do in another process."""
    _remembered.update(found)


def remembered() -> dict[str, Callable[..., Any]]:
    """What has no import path of its own."""
    return dict(_remembered)


def __getattr__(name: str) -> Callable[..., Any]:
    if name in _remembered:
        return _remembered[name]
    raise AttributeError(f"the optimizer {name!r} was given as a Python object; give it again")


def optimizer_text(given: str | Callable[..., Any]) -> str:
    """The text of an optimizer that is a text, a class, a function of the model, or a partial.

    A class has its own defaults, except for `LPSGD` and `LPSGDM`, which are the entries of
    `lpsgd optimizers`, with p annealed: the laboratory knows how long training will be.

    >>> import lpsgd, torch
    >>> from functools import partial
    >>> optimizer_text("adamw:lr=1e-3"), optimizer_text(partial(torch.optim.AdamW, lr=0.003))
    ('adamw:lr=1e-3', 'torch.optim.adamw:AdamW:lr=0.003')
    >>> optimizer_text(partial(lpsgd.LPSGDM, p=4))
    'lpsgdm:p=4'
    """
    if isinstance(given, str):
        return given
    if not callable(given):
        raise UserError(
            f"optimizers: {given!r} is a {type(given).__name__}; allowed: the name of an optimizer "
            "with its settings, such as 'adamw:lr=1e-3', a class, a partial of a class, or a "
            "function of the model"
        )
    target, settings = _unwrapped(given)
    name = _registered(target, settings) or _import_path(target)
    text = ",".join(f"{key}={_setting(target, key, value)}" for key, value in settings.items())
    return f"{name}:{text}" if text else name


def _unwrapped(given: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    if not isinstance(given, partial):
        return given, {}
    target, settings = _unwrapped(given.func)
    if given.args:
        raise UserError(f"optimizers: {given!r} has positional arguments; give settings by name")
    return target, {**settings, **given.keywords}


def _registered(target: Callable[..., Any], settings: Mapping[str, Any]) -> str | None:
    """The entry of the registry for one of the paper's classes, if it knows all the settings."""
    for name in ("lpsgd", "lpsgdm"):
        spec = registry.get(name)
        if getattr(target, "__name__", None) == spec.target.partition(":")[2]:
            known = load(spec.target) is target and not set(settings) - set(spec.settings)
            return name if known else None
    return None


def _import_path(target: Callable[..., Any]) -> str:
    module = getattr(target, "__module__", "")
    attribute = getattr(target, "__qualname__", type(target).__qualname__)
    path = f"{module}:{attribute}"
    found: Any = sys.modules.get(module) if module != "__main__" else None
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is target and grammar.is_import_path(path):
        return path
    name = "".join(c if c.isalnum() else "_" for c in attribute.rpartition(".")[2]).strip("_")
    name = name or "optimizer"
    known = _remembered.setdefault(name, target)
    if known is not target:
        if getattr(known, "__module__", None) != module or name == "lambda":
            raise UserError(
                f"optimizers: two objects are called {name!r}; give one of them another name"
            )
        _remembered[name] = target  # a cell of a notebook that was executed again
    return f"{__name__}:{name}"


def _setting(target: Callable[..., Any], key: str, value: Any) -> str:
    """A setting as `grammar.parse_value` reads it back."""
    text = str(value).lower() if isinstance(value, bool | None) else str(value)
    if isinstance(value, tuple | list):
        text = f"({','.join(_setting(target, key, item) for item in value)})"
    elif isinstance(value, type) or callable(value):
        text = _import_path(value)
    read = grammar.parse_value(text)
    same = read == (list(value) if isinstance(value, tuple) else value) or callable(value)
    if not same or ("," in text and not isinstance(value, tuple | list)):
        name = getattr(target, "__name__", repr(target))
        raise UserError(
            f"optimizers: {key}={value!r} of {name} is not a number, a text, True, False, None or "
            "a list of them; give a function of the model that makes the optimizer"
        )
    return text
