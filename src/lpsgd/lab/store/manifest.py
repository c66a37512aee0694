"""The manifests of several runs: comparison.json and plan.json, for `lpsgd report` and `status`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.command_line import command_line
from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.store.disk.jsonio import read_model, write_json

if TYPE_CHECKING:
    from lpsgd.lab.plan import Task


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan; its folder is told relative to that of the manifest."""

    label: str
    seed: int
    network: str
    epochs: int | None
    folder: str
    state: str = "queued"
    """Another one if whoever planned it knows that nothing more will be asked of it."""
    until_epoch: int | None = field(default=None, kw_only=True)
    """How far it is to be trained for now, if that is not to the end."""


def planned_run(task: Task, folder: str, **notes: Any) -> PlannedRun:
    """The run of ``task``, in a folder as it is to be told."""
    network = f"{task.recipe.model} / {task.recipe.dataset}"
    return PlannedRun(task.label, task.recipe.seed, network, task.recipe.epochs, folder, **notes)


class Manifest(BaseModel):
    """plan.json: the runs of a sweep or of a reproduction's target. sweep.json names none."""

    model_config = ConfigDict(frozen=True)

    version: int = 1
    command: str | None = None
    runs: tuple[PlannedRun, ...] = ()

    def planned(self) -> Iterable[PlannedRun]:
        """The runs that it names."""
        return self.runs


class ComparisonManifest(Manifest):
    """comparison.json: each of the optimizers is run with each of the seeds."""

    reference: str | None = None
    optimizers: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    epochs: int | None = None
    dataset: str | None = None
    model: str | None = None
    search_notes: dict[str, str] = {}
    """By label, what a verdict has to mention of the search that chose the settings."""

    def planned(self) -> Iterator[PlannedRun]:
        """The runs, where `run_place` has them."""
        network = f"{self.model} / {self.dataset}"
        for seed in self.seeds:
            for label in self.optimizers:
                place = run_place(Path(), label, seed).as_posix()
                yield PlannedRun(label, seed, network, self.epochs, place)


def run_place(folder: Path, label: str, seed: int) -> Path:
    """Where a comparison in ``folder`` has one of its runs: always below ``folder``.

    >>> run_place(Path("out"), "sgd", 0).as_posix()
    'out/runs/sgd/seed-0'
    """
    parts = Path(label).parts
    if not parts or Path(label).is_absolute() or ".." in parts or "\0" in label:
        raise UserError(f"the label {label!r} cannot be the name of a folder")
    return folder / "runs" / label / f"seed-{seed}"


def write_comparison(
    folder: Path, tasks: Sequence[Task], labels: Sequence[str], reference: str
) -> None:
    """Write comparison.json: which runs there will be, and what each is compared with."""
    recipe = tasks[0].recipe
    manifest = ComparisonManifest(
        command=command_line(),
        reference=reference,
        optimizers=tuple(labels),
        seeds=tuple(sorted({task.recipe.seed for task in tasks})),
        epochs=recipe.epochs,
        dataset=recipe.dataset,
        model=recipe.model,
        search_notes={task.label: task.search_note for task in tasks if task.search_note},
    )
    with writing(folder):
        write_json(folder / "comparison.json", manifest.model_dump(exclude={"runs"}))


def write_plan(
    folder: Path, tasks: Sequence[Task], notes: Mapping[Path, Mapping[str, Any]] | None = None
) -> None:
    """Write plan.json: which runs there will be, so that `lpsgd status` knows the queued ones.

    ``notes``: the ``until_epoch`` and ``state`` of a `PlannedRun`, by the folder of the run.
    """
    runs = [
        planned_run(
            task,
            Path(os.path.relpath(task.folder, folder)).as_posix(),
            **(notes or {}).get(task.folder, {}),
        )
        for task in tasks
    ]
    manifest = Manifest(command=command_line(), runs=tuple(runs))
    with writing(folder):
        write_json(folder / "plan.json", manifest.model_dump())


def read_comparison(folder: Path) -> ComparisonManifest | None:
    """Return comparison.json of ``folder``, or None if there is none."""
    return read_model(folder / "comparison.json", ComparisonManifest)


def read_manifests(folder: Path) -> Iterator[Manifest]:
    """Every manifest in ``folder``."""
    if (found := read_comparison(folder)) is not None:
        yield found
    # a sweep's plan follows as soon as it knows its first trials
    plan = read_model(folder / "plan.json", Manifest)
    sweep = None if plan else read_model(folder / "sweep.json", Manifest)
    if (manifest := plan or sweep) is not None:
        yield manifest
