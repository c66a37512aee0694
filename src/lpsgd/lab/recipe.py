"""The recipe: everything that decides what a run computes, and nothing else.

Two runs with equal recipes on the same machine give the same numbers. Where the data lie, how many
runs train at once, how often a checkpoint is written are not part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.lab.store.disk.jsonio import encode, explain
from lpsgd.lab.store.disk.tomlio import read_toml
from lpsgd.peers.grammar import is_import_path

SEARCH_NOTE = "search_note"
"""Beside the recipe's own keys in a file: what a verdict on these settings has to mention."""


OWN_DATA = "own"
"""The name of a data set that was given as Python objects."""


class ProblemNote(BaseModel):
    """What a recipe says of a model or data that the user gave as Python objects."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metrics: dict[str, Literal["max", "min"]] = {}
    """Which values are good; the first one decides. Empty for one of the laboratory's data sets."""
    digest: str
    """Of the first weights and batches: another problem has another one."""


class Recipe(BaseModel):
    """One run: data, model, optimizer, schedule, numerics, seed."""

    # strict: true is not 1, "8" is not 8. No infinite number: config.json could not be read back.
    # Built on first use: the command line only shows the fields when it prints help
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True
    )

    dataset: str = Field("digits", description="See `lpsgd data list`; or module:function.")
    data: dict[str, Any] = Field(
        default_factory=dict, description="Options of the data set, such as `path` for text."
    )
    train_size: int | None = Field(
        None, gt=0, lt=2**31, description="Train on a stratified subset."
    )
    val_size: int = Field(0, ge=0, lt=2**31, description="Training images to hold out.")
    test_size: int | None = Field(None, gt=0, lt=2**31, description="Test on a subset.")
    augment: bool = Field(True, description="Augment training images.")

    model: str = Field(
        "mlp",
        description="mlp, convnet, vgg11, vgg11_plain, resnet18, resnet50, gpt; "
        "or module:function.",
    )
    width: int | None = Field(
        None, gt=0, le=2**20, description="Channels of the first layer; default 64."
    )
    start: str | None = Field(None, description="Run or checkpoint whose weights to start from.")
    problem: ProblemNote | None = Field(None, description="Of a model or data of one's own.")

    optimizer: str = Field("lpsgdm", description="Name in `lpsgd optimizers`, or an import path.")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="The optimizer's settings; those left out are filled in."
    )
    decay: Literal["all", "matrices"] = Field("all", description="What weight decay acts on.")
    closure: bool = Field(False, description="Call `step(closure)`, as SAM needs.")
    create_graph: bool = Field(False, description="Keep the gradient's graph, as Sophia needs.")

    epochs: int = Field(20, gt=0, lt=2**31, description="Passes over the training set.")
    batch_size: int = Field(128, gt=0, lt=2**31, description="Examples in one step.")
    accumulate: int = Field(1, gt=0, lt=2**31, description="Parts in which a batch is computed.")
    lr_schedule: Literal["cosine", "constant"] = Field("cosine", description="After the warm-up.")
    warmup_epochs: float = Field(1.0, ge=0, description="Linear warm-up of the learning rate.")
    lr_end: float = Field(0.0, ge=0, le=1, description="Last learning rate / peak, for cosine.")

    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Smoothing of the targets.")
    clip_norm: float | None = Field(None, gt=0, description="Clip the gradient to this l2 norm.")
    ema: float = Field(0.0, ge=0, lt=1, description="Decay of averaged weights; 0 is off.")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="Precision of autocast.")
    compile: bool = Field(False, description="Use torch.compile.")
    device: str = Field("auto", description="cpu, cuda, cuda:1; auto takes a GPU.")
    threads: int = Field(1, gt=0, le=4096, description="CPU threads; they change rounding.")
    seed: int = Field(0, ge=0, lt=2**31, description="Of weights, batches and augmentation.")
    train_eval_every: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="Score the whole training set every N epochs.",
    )

    @field_validator("data", "settings")
    @classmethod
    def _plain_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: _plain(name, value) for name, value in values.items()}

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"accumulate={self.accumulate} is more than batch_size={self.batch_size}"
            )
        if self.warmup_epochs > self.epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs:g} is more than epochs={self.epochs}: the "
                "learning rate would never reach its peak"
            )
        if self.precision == "fp16" and (self.closure or self.create_graph):
            raise ValueError("closure and create_graph do not work with precision=fp16's scaling")
        return self

    def with_changes(self, **changes: Any) -> Recipe:
        """Return a validated copy with some fields replaced."""
        return make_recipe({**self.model_dump(), **changes})

    def digest(self, *, without: tuple[str, ...] = ()) -> str:
        """Eight hex digits that differ between different recipes."""
        kept = {name: value for name, value in to_json(self).items() if name not in without}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def to_json(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as values of strict JSON; `make_recipe` takes them back."""
    values: dict[str, Any] = encode(recipe.model_dump())
    for name in ("start", "problem"):  # younger than folders that were written without them
        if values[name] is None:
            del values[name]
    return values


def make_recipe(values: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """Validate ``values``; every mistake is named, unknown keys with the nearest known one."""
    for key in values:
        if key not in Recipe.model_fields:
            raise UserError(f"{source}: {unknown_name('key', key, Recipe.model_fields)}")
    try:
        return Recipe(**values)
    except ValidationError as error:
        raise UserError(f"{source}: {explain(error)}") from None


def read_recipe_file(path: Path, *, option: str = "--recipe") -> dict[str, Any]:
    """Read the keys of a TOML recipe; `make_recipe` validates them."""
    values = read_toml(path, f"{option} {path}")
    values.pop(SEARCH_NOTE, None)
    return values


def refuse_imports(values: Mapping[str, Any], source: str, *, allow_import: bool) -> None:
    """Raise UserError for an import path in a file unless its user has said to trust it."""
    for name in ("optimizer", "model", "dataset"):
        if not allow_import and is_import_path(value := str(values.get(name, ""))):
            raise UserError(
                f"{source}: {name}={value!r} would import and run code of that package; "
                "give --allow-import if you trust this file"
            )


def read_search_note(path: Path, *, option: str = "--recipe") -> str:
    """What a sweep wrote into the recipe of a winner that its search leaves doubts about."""
    note = read_toml(path, f"{option} {path}").get(SEARCH_NOTE, "")
    if not isinstance(note, str):
        raise UserError(f"{option} {path}: {SEARCH_NOTE}={note!r} is not a string")
    return note


def _plain(name: str, value: Any) -> Any:
    """Check one option or setting; "inf" and "nan", as strict JSON spells them, become numbers."""
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(value, tuple | list):
        return [_plain(name, item) for item in value]
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{name} has more than 64 bits")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{name}={value!r} is not a number, a string, true, false or a list of them")
