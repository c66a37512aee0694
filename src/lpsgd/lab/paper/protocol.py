"""From a row of the paper's tables to runs: scale and choices applied, nothing executed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lpsgd.lab.paper.scales import Place, Scale
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.plan import Task
from lpsgd.lab.recipe import Recipe, make_recipe
from lpsgd.lab.store.run_record import RunRecord, load_run
from lpsgd.peers import registry

Panel = TypeVar("Panel", bound="tuple[Any, ...]")


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    scale: Scale
    choices: Mapping[str, Any]
    out: Path
    models: tuple[str, ...]
    seeds: int

    def folder(self, target: str) -> Path:
        """Where a target's figures and tables go."""
        return self.out / target


def chosen_panels(panels: Iterable[Panel], options: Options) -> list[Panel]:
    """Of a figure's panels (data set, model, ...), those whose model was asked for."""
    return [panel for panel in panels if panel[1] in options.models]


def place_of(dataset: str, options: Options) -> Place:
    """What the scale and the choices put in the place of one of the paper's data sets."""
    return options.scale.places[dataset]


def epochs_of(dataset: str, options: Options) -> int:
    """The epochs of a run."""
    if dataset == "imagenet1k":
        return max(1, round(_scaled(options.choices["imagenet-epochs"], dataset, options)))
    return place_of(dataset, options).epochs


def scaled_epoch(epoch: int, dataset: str, options: Options) -> int:
    """The epoch of a run that corresponds to an epoch of the paper (50 of 200 is 5 of 20)."""
    return max(1, round(_scaled(epoch, dataset, options)))


def _scaled(epochs: float, dataset: str, options: Options) -> float:
    """A number of the paper's epochs at the scale's; at paper scale the same."""
    return epochs * place_of(dataset, options).epochs / tables.checkpoints(dataset)[-1]


def _measured_epochs(dataset: str, options: Options) -> int:
    """The largest spacing of measurements that meets every checkpoint of a data set's table."""
    return math.gcd(*(scaled_epoch(e, dataset, options) for e in tables.checkpoints(dataset)))


def recipe(row: tables.Setting, options: Options, **settings: Any) -> Recipe:
    """The run of one row of Tables 4 to 6; ``settings`` replace those of the optimizer."""
    place, choices = place_of(row.dataset, options), options.choices
    values = tables.recipe_values(row)
    epochs = epochs_of(row.dataset, options)
    batch = options.scale.batch_size or values["batch_size"] * choices["gpus"]
    warmup = _scaled(choices["warmup"], row.dataset, options)
    optimizer, chosen = _optimizer(values["optimizer"], {**values["settings"], **settings}, options)
    if optimizer == "lpsgdm" and choices["p-cosine"] == "after-warmup":
        # p changes between epochs: it is held in each that has a part of the warm-up
        optimizer, chosen = _held(chosen, math.ceil(warmup), epochs, place.train // batch)
    return make_recipe(
        {
            **values,
            "model": _model(values["model"], choices["vgg"]),
            "width": options.scale.widths[row.model],
            "dataset": place.dataset,
            "data": dict(place.data),
            "train_size": place.train if place.subset else None,
            "test_size": place.test if place.subset else None,
            "augment": choices["augment"] == "on",
            "optimizer": optimizer,
            "settings": registry.complete_settings(optimizer, chosen),
            "decay": choices["decayed"],
            "epochs": epochs,
            "batch_size": batch,
            "warmup_epochs": min(warmup, float(epochs)),
            "lr_end": choices["lr-end"],
            "train_eval_every": (
                _measured_epochs(row.dataset, options) if choices["train-nll"] == "whole" else 0
            ),
        },
        source="the paper's settings",
    )


def _model(name: str, vgg: str) -> str:
    return "vgg11_plain" if name == "vgg11" and vgg == "plain" else name


def _optimizer(name: str, settings: dict[str, Any], options: Options) -> tuple[str, dict[str, Any]]:
    """The optimizer under the choices that concern it."""
    choices = options.choices
    if name == "lion" and choices["lion-beta2"] == "text":
        settings = {**settings, "betas": [settings["betas"][0], 0.99]}
    if name != "sgd":
        return name, settings
    settings = {**settings, "nesterov": choices["nesterov"] == "on" and settings["momentum"] > 0}
    decoupled = choices["sgd-decay"] == "decoupled"
    if choices["sgd-momentum"] == "averaged":
        # m <- b m + (1-b) g with lr is m <- b m + g with (1-b) lr; lr*wd of a decoupled decay stays
        fresh = 1 - settings["momentum"]
        settings = {**settings, "lr": settings["lr"] * fresh}
        if decoupled:
            settings["weight_decay"] = settings["weight_decay"] / fresh
    return ("sgdw" if decoupled else "sgd"), settings


def _held(
    settings: Mapping[str, Any], held: int, epochs: int, steps: int
) -> tuple[str, dict[str, Any]]:
    from lpsgd.lab.paper.variants import HELD

    kept = {name: value for name, value in settings.items() if name != "p_schedule"}
    horizon = {"held_epochs": held, "total_epochs": epochs, "steps_per_epoch": steps}
    return HELD, {**kept, **horizon}


def tasks_for(recipe: Recipe, label: str, options: Options, *, kind: str = "runs") -> list[Task]:
    """One task for each seed. Targets that need the same run share its folder."""
    network = f"{recipe.dataset}-{recipe.model}"
    # named after what is trained, not after the target's label for it
    name = f"{recipe.optimizer.rpartition(':')[2]}-{recipe.digest(without=('seed',))}"
    folder = options.out / kind / network / name
    return [
        Task(label, recipe.with_changes(seed=seed), folder / f"seed-{seed}")
        for seed in range(options.seeds)
    ]


def paired_order(tasks: Iterable[Task]) -> list[Task]:
    """Every label's first seed before any second seed, so that early results can be compared."""
    return sorted(tasks, key=lambda task: task.recipe.seed)


def load(tasks: Sequence[Task]) -> list[RunRecord]:
    """What the runs' folders hold."""
    return [load_run(task.folder, task.folder) for task in tasks]
