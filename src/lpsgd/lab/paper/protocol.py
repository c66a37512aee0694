"""From a row of the paper's tables to planned runs, and from their folders to what was measured.

A target of `lpsgd reproduce` is made in four steps: plan -> execute -> load -> draw. The plan is a
list of `RunGroup`, made once; loading fills in what each run's folder holds, once; drawing reads
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.paper.scales import Scale
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.plan import Task
from lpsgd.lab.recipe import Recipe, make_recipe
from lpsgd.lab.report.document import Document, text
from lpsgd.lab.store.run_record import RunRecord, load_run
from lpsgd.peers import registry


@dataclass(frozen=True)
class Setup:
    """What the user asked for."""

    scale: Scale
    choices: Mapping[str, Any]
    out: Path
    models: tuple[str, ...]
    seeds: int


@dataclass(frozen=True)
class RunGroup:
    """The seeds of one setting: a row of a table, a line of a figure.

    ``dataset``, ``model`` and ``label`` are the paper's names. ``runs`` is empty until `load_runs`.
    """

    dataset: str
    model: str
    label: str
    tasks: Sequence[Task]
    runs: Sequence[RunRecord] = ()


def scaled_epoch(epoch: int, dataset: str, setup: Setup) -> int:
    """The epoch of a run that corresponds to an epoch of the paper (50 of 200 is 5 of 20)."""
    return max(1, round(_scaled(epoch, dataset, setup)))


def _scaled(epochs: float, dataset: str, setup: Setup) -> float:
    """A number of the paper's epochs at the scale's; at paper scale the same."""
    return epochs * setup.scale.stand_ins[dataset].epochs / tables.checkpoints(dataset)[-1]


def recipe(row: tables.Setting, setup: Setup, **settings: Any) -> Recipe:
    """The run of one row of Tables 4 to 6; ``settings`` replace those of the optimizer."""
    place, choices = setup.scale.stand_ins[row.dataset], setup.choices
    if choices["settings"] == "retuned":
        row = replace(row, lr=_retuned_rate(row, setup.scale))
    values = tables.recipe_values(row)
    checkpoints = [scaled_epoch(e, row.dataset, setup) for e in tables.checkpoints(row.dataset)]
    epochs = checkpoints[-1]
    if row.dataset == "imagenet1k":
        epochs = scaled_epoch(choices["imagenet-epochs"], row.dataset, setup)
    plain_vgg = values["model"] == "vgg11" and choices["vgg"] == "plain"
    batch = setup.scale.batch_size or values["batch_size"] * choices["gpus"]
    warmup = _scaled(choices["warmup"], row.dataset, setup)
    optimizer, chosen = _optimizer(values["optimizer"], {**values["settings"], **settings}, setup)
    if optimizer == "lpsgdm" and choices["p-cosine"] == "after-warmup":
        # p changes between epochs: it is held in each that has a part of the warm-up
        from lpsgd.lab.paper.variants import HELD

        del chosen["p_schedule"]
        horizon = {"total_epochs": epochs, "steps_per_epoch": place.train // batch}
        optimizer, chosen = HELD, {**chosen, "held_epochs": math.ceil(warmup), **horizon}
    return make_recipe(
        {
            **values,
            "model": "vgg11_plain" if plain_vgg else values["model"],
            "width": setup.scale.widths.get(row.model),
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
            # the largest spacing that meets every checkpoint of the table
            "train_eval_every": math.gcd(*checkpoints) if choices["train-nll"] == "whole" else 0,
        },
        source="the paper's settings",
    )


def _retuned_rate(row: tables.Setting, scale: Scale) -> float:
    """The learning rate of the search at this scale's length."""
    known = tables.retuned_rates()
    wanted = (scale.name, row.dataset, row.model, row.optimizer)
    for found in known:
        if (found.scale, found.dataset, found.model, found.optimizer) == wanted:
            return found.lr
    searched = dict.fromkeys(f"{r.dataset} {r.model} at {r.scale} scale" for r in known)
    raise UserError(
        f"--choose settings=retuned: nobody searched {row.dataset} {row.model} at {scale.name} "
        f"scale; searched: {', '.join(searched)}. --models leaves networks out"
    )


def _optimizer(name: str, settings: dict[str, Any], setup: Setup) -> tuple[str, dict[str, Any]]:
    """The optimizer under the choices that concern it."""
    choices = setup.choices
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


def tasks_for(recipe: Recipe, label: str, setup: Setup, *, kind: str = "runs") -> list[Task]:
    """One task for each seed. Targets that need the same run share its folder."""
    network = f"{recipe.dataset}-{recipe.model}"
    # named after what is trained, not after the target's label for it
    name = f"{recipe.optimizer.rpartition(':')[2]}-{recipe.digest(without=('seed',))}"
    folder = setup.out / kind / network / name
    return [
        Task(label, recipe.with_changes(seed=seed), folder / f"seed-{seed}")
        for seed in range(setup.seeds)
    ]


def all_tasks(groups: Iterable[RunGroup]) -> list[Task]:
    """The runs of all groups."""
    return [task for group in groups for task in group.tasks]


def load_runs(groups: Iterable[RunGroup]) -> list[RunGroup]:
    """The groups with what the folders of their runs hold."""
    return [
        replace(group, runs=[load_run(task.folder, task.folder) for task in group.tasks])
        for group in groups
    ]


def by_panel(
    groups: Iterable[RunGroup], name: Callable[[RunGroup], str]
) -> dict[str, dict[str, Sequence[RunRecord]]]:
    """The loaded runs of each label in each panel, which ``name`` gives."""
    panels: dict[str, dict[str, Sequence[RunRecord]]] = {}
    for group in groups:
        panels.setdefault(name(group), {})[group.label] = group.runs
    return panels


def data_title(dataset: str, setup: Setup) -> str:
    """What a run was trained on: the paper's data set, or what stands in for it."""
    scale = setup.scale
    return tables.DATASETS[dataset] if scale.comparable else scale.stand_ins[dataset].title


def begin_document(name: str, title: str, datasets: Iterable[str], setup: Setup) -> Document:
    """A document whose title and first words tell its scale."""
    scale = setup.scale
    document = Document(name, scale.title(title, tuple(datasets)))
    return document if scale.comparable else document.add(text(scale.note()))
