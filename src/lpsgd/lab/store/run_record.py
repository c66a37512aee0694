"""Reading what training left on disk: the folder of a run and the folder of a comparison."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.jsonio import number

State = Literal["complete", "diverged", "incomplete", "not started"]


@dataclass(frozen=True)
class RunRecord:
    """One run as its folder tells it. ``history`` has one row for each epoch."""

    label: str
    seed: int
    folder: str
    state: State
    reason: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def optimizer(self) -> str:
        """The optimizer's name in the registry; the label may say more."""
        return str(_optimizer(self.config).get("name", self.label))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The optimizer's settings."""
        settings = _optimizer(self.config).get("settings")
        return settings if isinstance(settings, Mapping) else {}

    def setting(self, key: str) -> Any:
        """A field of the recipe, whether the file holds it flat or inside ``recipe``."""
        if key in self.config:
            return self.config[key]
        recipe = self.config.get("recipe")
        return recipe.get(key) if isinstance(recipe, Mapping) else None

    def values(self, metric: str) -> list[float | None]:
        """A metric at every epoch; None where it was not measured."""
        return [number(row.get(metric)) for row in self.history]

    def last(self, metric: str) -> float | None:
        """A metric at the last epoch."""
        return number(self.history[-1].get(metric)) if self.history else None


@dataclass(frozen=True)
class Comparison:
    """The runs of one comparison, in the order of its optimizers and seeds."""

    folder: str
    labels: tuple[str, ...]
    reference: str
    seeds: tuple[int, ...]
    runs: tuple[RunRecord, ...]
    command: str | None = None
    notes: tuple[str, ...] = ()


def load_comparison(folder: Path | str) -> Comparison:
    """Read ``folder``: a comparison (with ``comparison.json``), or any folder that holds runs."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a folder; expected a folder that holds runs")
    runs = [load_run(place, folder) for place in run_folders(folder)]
    plan = read_json(folder / "comparison.json")
    if plan:
        return _planned(folder, plan, runs)
    if not runs:
        raise UserError(
            f"no run in {str(folder)!r}: expected folders with config.json and metrics.jsonl, "
            "as `lpsgd train` and `lpsgd compare` write them"
        )
    return _loose(folder, runs)


def load_run(place: Path, root: Path) -> RunRecord:
    """Read one run's folder; ``root`` is what its ``folder`` is told relative to."""
    config = read_json(place / "config.json")
    result = read_json(place / "result.json")
    history = _read_history(place / "metrics.jsonl")
    state: State = "incomplete"
    if result.get("state") in ("complete", "diverged"):
        state = result["state"]
    reason = result.get("reason")
    epochs = result.get("epochs")
    if state == "complete" and isinstance(epochs, int) and len(history) != epochs:
        # an earlier epoch must not pass for the last one
        state = "incomplete"
        reason = f"metrics.jsonl was changed: {len(history)} of {epochs} epochs are there"
    run = RunRecord("", 0, place.relative_to(root).as_posix(), state, config=config)
    return replace(
        run,
        label=str(run.setting("label") or run.optimizer or place.name),
        seed=_seed(run.setting("seed") or 0, place / "config.json"),
        reason=None if reason is None else str(reason),
        environment=read_json(place / "environment.json"),
        result=result,
        history=history,
    )


def _planned(folder: Path, plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> Comparison:
    """The runs that ``comparison.json`` names, in its order; a missing one is 'not started'."""
    path = folder / "comparison.json"
    for key in ("optimizers", "seeds"):
        if not isinstance(plan.get(key, []), list):
            raise UserError(f"cannot read {str(path)!r}: {key} is {plan[key]!r}, no list")
    labels = tuple(str(label) for label in plan.get("optimizers", ()))
    seeds = tuple(_seed(seed, path) for seed in plan.get("seeds", ()))
    if not labels:
        raise UserError(f"{str(path)!r} names no optimizers")
    found: dict[tuple[str, int], RunRecord] = {}
    for run in runs:
        # a copy or another comparison further down may hold a run of the same name
        if (run.label, run.seed) not in found or _is_own(run):
            found[run.label, run.seed] = run
    listed = tuple(
        found.pop((label, seed), RunRecord(label, seed, "", "not started"))
        for label in labels
        for seed in seeds
    )
    notes = []
    if found:
        others = ", ".join(f"{label} seed {seed}" for label, seed in sorted(found))
        notes.append(f"In the folder but not part of this comparison: {others}.")
    reference = str(plan.get("reference") or labels[0])
    command = plan.get("command")
    return Comparison(
        folder=str(folder),
        labels=labels,
        reference=reference,
        seeds=seeds,
        runs=listed,
        command=None if command is None else str(command),
        notes=(*notes, *_mixed(listed)),
    )


def _is_own(run: RunRecord) -> bool:
    """Whether the run is where `run_place` has the runs of the comparison itself."""
    return Path(run.folder) == run_place(Path(), run.label, run.seed)


def _loose(folder: Path, runs: Sequence[RunRecord]) -> Comparison:
    """Runs without a plan: optimizers in the order of their folders, the first is the reference."""
    runs = _distinct(runs)
    labels = tuple(dict.fromkeys(run.label for run in runs))
    ordered = sorted(runs, key=lambda run: (labels.index(run.label), run.seed))
    return Comparison(
        folder=str(folder),
        labels=labels,
        reference=labels[0],
        seeds=tuple(sorted({run.seed for run in runs})),
        runs=tuple(ordered),
        notes=_mixed(runs),
    )


def _distinct(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Labels that tell apart runs of one label with other settings, and at last other folders."""
    by_label = defaultdict(list)
    for run in runs:
        by_label[run.label].append(run)
    named = [replace(run, label=run.label + _differing(run, by_label[run.label])) for run in runs]
    count = Counter((run.label, run.seed) for run in named)
    return [
        run
        if count[run.label, run.seed] == 1
        else replace(run, label=f"{run.label} ({run.folder})")
        for run in named
    ]


def _differing(run: RunRecord, peers: Sequence[RunRecord]) -> str:
    """``:key=value,...`` for the settings in which the runs of one label differ."""
    keys = sorted({key for peer in peers for key in peer.settings})
    differing = [key for key in keys if len({str(p.settings.get(key)) for p in peers}) > 1]
    text = ",".join(f"{key}={run.settings.get(key)}" for key in differing)
    return f":{text}" if text else ""


def _mixed(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """A warning for each field that must be equal for a fair comparison and is not."""
    notes = []
    for key in ("dataset", "model", "width", "epochs", "batch_size", "train_size", "precision"):
        values = dict.fromkeys(str(run.setting(key)) for run in runs if run.config)
        if len(values) > 1:
            notes.append(f"The runs differ in {key}: {', '.join(values)}. Compare with care.")
    return tuple(notes)


def run_place(folder: Path, label: str, seed: int) -> Path:
    """Where a comparison in ``folder`` has one of its runs."""
    return folder / "runs" / label / f"seed-{seed}"


def is_run(folder: Path) -> bool:
    """Tell whether ``config.json`` in ``folder`` is a run's."""
    return bool(_optimizer(read_json(folder / "config.json")))


def run_folders(root: Path) -> Iterator[Path]:
    """Every folder at or below ``root`` whose ``config.json`` is a run's; nothing inside a run."""
    for name, folders, files in os.walk(root):
        folders.sort()
        if "config.json" in files and is_run(Path(name)):
            folders.clear()
            yield Path(name)


def _seed(value: Any, path: Path) -> int:
    if isinstance(value, int):
        return value
    raise UserError(f"cannot read {str(path)!r}: the seed {value!r} is no whole number")


def _optimizer(config: Mapping[str, Any]) -> Mapping[str, Any]:
    optimizer = config.get("optimizer")
    return optimizer if isinstance(optimizer, Mapping) else {}


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``; empty if there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {str(path)!r}: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"cannot read {str(path)!r}: expected a JSON object")
    return value


def _read_history(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error}") from error
    lines.pop()  # what follows the last newline is a row that is being written at this moment
    rows = []
    for place, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"cannot read {str(path)!r}, line {place}: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"cannot read {str(path)!r}, line {place}: expected a JSON object")
        rows.append(row)
    return tuple(rows)
