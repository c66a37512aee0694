"""What is known about an optimizer: a frozen description, registered or read off its signature."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class OptimizerSpec:
    """One optimizer: its rule, what can be set, what it keeps, where it comes from, how to make it.

    ``target`` is the import path of a class that takes parameters first, or of a function that
    takes the model. With ``takes_total_steps`` it is also told how long training will be, as an
    import path is that has a ``total_steps`` without a default.
    ``open_settings`` says that names outside ``settings`` may be right too (a class with
    ``**kwargs``).
    """

    name: str
    rule: str
    settings: Mapping[str, Any]
    state: str
    source: str
    target: str
    takes_total_steps: bool = False
    needs_closure: bool = False
    create_graph: bool = False
    open_settings: bool = False
    required: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))


def describe(path: str) -> OptimizerSpec:
    """Describe the class or function at the import path, which is imported."""
    target = load(path)
    parameters = list(inspect.signature(target).parameters.values())
    if not parameters:
        raise ValueError(f"{path!r} takes no argument: it must take parameters or a model first")
    named = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    told = [p for p in named if p.name == "total_steps" and p.default is p.empty]
    named = [p for p in named if p not in told]
    return OptimizerSpec(
        name=path,
        rule=(inspect.getdoc(target) or "no description").strip().splitlines()[0],
        settings={p.name: p.default for p in named},
        state="unknown",
        source=path.split(":")[0],
        target=path,
        takes_total_steps=bool(told),
        open_settings=any(p.kind is p.VAR_KEYWORD for p in parameters),
        required=tuple(p.name for p in named if p.default is p.empty),
    )


def load(path: str) -> Any:
    """Return the class or function at ``package.module:Name``."""
    module, _, attribute = path.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot import {path!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{path!r} is a {type(found).__name__}, not a class or a function")
    return found
