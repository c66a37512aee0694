"""config.json: the recipe of a run, and its main parts where readers look for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from lpsgd.lab.errors import UserError
from lpsgd.lab.recipe import Recipe, to_json
from lpsgd.lab.store.disk.jsonio import read_model, read_object


class OptimizerConfig(BaseModel):
    """An optimizer's name in the registry, and its settings."""

    name: str
    settings: dict[str, Any] = {}


class RunConfig(BaseModel):
    """What a run trains; an earlier version may have written less."""

    model_config = ConfigDict(frozen=True, extra="allow")

    version: int = 1
    label: str | None = None
    optimizer: OptimizerConfig
    dataset: str | None = None
    model: str | None = None
    width: int | None = None
    seed: int = 0
    epochs: int | None = None
    batch_size: int | None = None
    precision: str | None = None
    threads: int | None = None
    recipe: dict[str, Any] = {}

    @classmethod
    def of(cls, recipe: Recipe, label: str) -> RunConfig:
        """The config of a run that is to be trained."""
        values = to_json(recipe)
        optimizer = OptimizerConfig(name=values["optimizer"], settings=values["settings"])
        shown = {name: values[name] for name in cls.model_fields if name in values}
        return cls(**{**shown, "label": label, "optimizer": optimizer, "recipe": values})


def is_run(folder: Path) -> bool:
    """Tell whether ``config.json`` in ``folder`` is a run's and not another program's."""
    try:
        found = read_object(folder / "config.json") or {}
    except UserError:
        return True  # it cannot be read, which whoever reads the run will be told
    return isinstance(found.get("optimizer"), dict)


def read_config(folder: Path) -> RunConfig | None:
    """Return what the run in ``folder`` trains, or None if there is no run."""
    return read_model(folder / "config.json", RunConfig)
