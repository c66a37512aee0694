"""Settings found by an equal-trial search on the validation split, for each data set and model.

``defaults.json`` is written by ``scripts/find_defaults.py`` and holds the command that made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from lpsgd.peers.grammar import is_import_path
from lpsgd.peers.registry import get

if TYPE_CHECKING:
    from lpsgd.lab.recipe import Recipe


# Images of the same kind and size: what was searched on one serves the other.
_LIKE = {"cifar100": "cifar10"}
# A network that was not searched takes what was found for its nearest kind, else for any.
_KIN = {"vgg11": "resnet18", "resnet18": "vgg11", "resnet50": "resnet18"}
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
    of_model = {entry["model"]: entry for entry in searched}
    nearest = of_model.get(model) or of_model.get(_KIN.get(model, ""))
    return nearest or next(iter(searched), None)


def default_settings(dataset: str, model: str, optimizer: str) -> dict[str, Any]:
    """Return the searched settings of ``optimizer`` for this model, or for another, on this data.

    Where nothing was searched on this data, nothing is returned and the registry's defaults hold:
    what suits a few minutes on digits does not suit a night on photographs.
    """
    entry = _entry(dataset, model, optimizer)
    return dict(entry["settings"]) if entry is not None else {}


def searched(optimizer: str) -> dict[str, dict[str, Any]]:
    """What was found for ``optimizer`` wherever it was searched: "digits/mlp" -> settings."""
    entries = (entry for entry in _entries() if entry["optimizer"] == optimizer)
    return {f"{entry['dataset']}/{entry['model']}": dict(entry["settings"]) for entry in entries}


def doubts(recipes: Iterable[Recipe]) -> str | None:
    """Say which learning rates are defaults that were not searched for training like this."""
    unsure: dict[str, dict[str, None]] = {}  # why, and of whom, each once
    for recipe in recipes:
        if why := _doubt(recipe):
            unsure.setdefault(why, {})[recipe.optimizer] = None
    if not unsure:
        return None
    named = "; ".join(f"{', '.join(names)} ({why})" for why, names in unsure.items())
    return f"default learning rates of {named}: use `lpsgd sweep` to search for this training"


def _doubt(recipe: Recipe) -> str | None:
    """Why the learning rate of this recipe, if it is the default, may be a poor one."""
    entry = _entry(recipe.dataset, recipe.model, recipe.optimizer)
    lr = recipe.settings.get("lr")
    if entry is None:
        spec = None if is_import_path(recipe.optimizer) else get(recipe.optimizer)
        return "never searched here" if spec is not None and lr == spec.settings["lr"] else None
    if lr != entry["settings"]["lr"]:
        return None
    epochs = entry["setup"]["epochs"]
    if (entry["dataset"], entry["model"]) != (recipe.dataset, recipe.model):
        return f"searched on {entry['dataset']}/{entry['model']}, {epochs} epochs"
    return f"searched with {epochs} epochs" if recipe.epochs > _FAR * epochs else None
