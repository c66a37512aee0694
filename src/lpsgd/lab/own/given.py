"""From a recipe back to the objects that it names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.own.problem import Problem
from lpsgd.lab.recipe import Recipe
from lpsgd.peers.description import load
from lpsgd.peers.grammar import is_import_path


def problem_of(recipe: Recipe, file: Path | None = None) -> Problem | None:
    """What ``recipe`` trains if it is the user's own: from ``file``, else by its import paths."""
    if file is not None:
        from lpsgd.lab.own.transport import received

        return received(file)
    problem = imported(recipe.model, recipe.dataset)
    if problem is None and recipe.problem is not None:
        raise UserError(
            f"model={recipe.model} and dataset={recipe.dataset} were given as Python objects: "
            "call lpsgd.lab.compare, train, sweep or spectrum with them again"
        )
    return problem


def imported(model: str, dataset: str) -> Problem | None:
    """The problem of the import paths among these two names; None if neither is one.

    The data set's function returns (train, test), (train, val, test), or a mapping with the
    arguments of `Problem`: train, test, and perhaps val, loss, metrics, step, collate. It is called
    with the seed if it takes one.
    """
    if not is_import_path(model) and not is_import_path(dataset):
        return None
    made: dict[str, Any] = {}
    try:
        if is_import_path(model):
            made["model"] = load(model)
        if is_import_path(dataset):
            made |= _data(dataset, load(dataset))
    except ValueError as error:
        raise UserError(str(error)) from error
    if "model" not in made:
        raise UserError(
            f"dataset={dataset!r} needs a model by import path, too: model={model!r} is made for "
            "the laboratory's own data sets"
        )
    return Problem(**made)


def _data(path: str, function: Any) -> dict[str, Any]:
    if inspect.signature(function).parameters:
        return {"train": function}  # seed -> loaders
    found = function()
    if not isinstance(found, Mapping):
        return {"train": lambda seed: found}
    allowed = ("train", "test", "val", "loss", "metrics", "step", "collate")
    if unknown := [name for name in found if name not in allowed]:
        raise UserError(f"dataset={path!r} returned {unknown[0]!r}; allowed: {', '.join(allowed)}")
    return dict(found)
