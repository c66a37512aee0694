"""Settings found by an equal-trial search on the validation split, for each data set and model.

``defaults.json`` is written by ``scripts/find_defaults.py`` and holds the command that made it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _entries() -> list[dict[str, Any]]:
    text = files("lpsgd.lab").joinpath("defaults.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["entries"]
    return entries


def default_settings(dataset: str, model: str, optimizer: str) -> dict[str, Any]:
    """Return the searched settings of ``optimizer`` for this model, or for another, on this data.

    Where nothing was searched on this data, nothing is returned and the registry's defaults hold:
    what suits a few minutes on digits does not suit a night on photographs.
    """
    searched = [e for e in _entries() if (e["dataset"], e["optimizer"]) == (dataset, optimizer)]
    same_model = [entry for entry in searched if entry["model"] == model]
    for entry in same_model or searched:
        return dict(entry["settings"])
    return {}
