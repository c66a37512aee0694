"""Settings found by an equal-trial search on the validation split, for each data set and model.

``defaults.json`` is written by ``scripts/find_defaults.py`` and holds the command that made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from lpsgd.peers.registry import get, is_import_path

if TYPE_CHECKING:
    from lpsgd.lab.recipe import Recipe


# Images of the same kind and size: what was searched on one serves the other.
_LIKE = {"cifar100": "cifar10"}
# The best rate falls as training becomes longer: said beyond so many times the searched epochs.
_FAR = 4


@cache
def _entries() -> list[dict[str, Any]]:
    text = files("lpsgd.lab").joinpath("defaults.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["entries"]
    return entries


def _entry(dataset: str, model: str, optimizer: str) -> dict[str, Any] | None:
    """What was searched for this model on this data, else for another model on it."""
    dataset = _LIKE.get(dataset, dataset)
    searched = [e for e in _entries() if (e["dataset"], e["optimizer"]) == (dataset, optimizer)]
    same_model = [entry for entry in searched if entry["model"] == model]
    return next(iter(same_model or searched), None)


def default_settings(dataset: str, model: str, optimizer: str) -> dict[str, Any]:
    """Return the searched settings of ``optimizer`` for this model, or for another, on this data.

    Where nothing was searched on this data, nothing is returned and the registry's defaults hold:
    what suits a few minutes on digits does not suit a night on photographs.
    """
    entry = _entry(dataset, model, optimizer)
    return dict(entry["settings"]) if entry is not None else {}


def doubts(recipes: Iterable[Recipe]) -> str | None:
    """Say which learning rates are defaults that were not searched for training like this."""
    unsure = []
    for recipe in recipes:
        entry = _entry(recipe.dataset, recipe.model, recipe.optimizer)
        lr = recipe.settings.get("lr")
        if entry is None:
            spec = None if is_import_path(recipe.optimizer) else get(recipe.optimizer)
            if spec is not None and lr == spec.settings.get("lr"):
                unsure.append(f"{recipe.optimizer} (never searched here)")
        elif lr == entry["settings"]["lr"] and recipe.epochs > _FAR * entry["setup"]["epochs"]:
            unsure.append(f"{recipe.optimizer} (searched with {entry['setup']['epochs']} epochs)")
    if not unsure:
        return None
    return (
        f"default learning rates of {', '.join(dict.fromkeys(unsure))}: `lpsgd sweep` finds those "
        "that suit this training"
    )
