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
    """Return the searched settings of ``optimizer``, from the nearest setting that was searched.

    That is this model on this data, else this model on other data, else this data; where nothing
    was searched for the optimizer, nothing is returned and the registry's defaults hold.
    """
    searched = [entry for entry in _entries() if entry["optimizer"] == optimizer]
    nearness = {(True, True): 3, (False, True): 2, (True, False): 1}
    best = max(
        searched,
        key=lambda e: nearness.get((e["dataset"] == dataset, e["model"] == model), 0),
        default=None,
    )
    if best is None or (best["dataset"] != dataset and best["model"] != model):
        return {}
    return dict(best["settings"])
