"""Reading what training left on disk: the folder of a run and the folder of a comparison."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.disk.jsonio import read_model, read_object
from lpsgd.lab.store.manifest import ComparisonManifest, read_comparison, run_place
from lpsgd.lab.store.metrics_file import MetricsRow, read_metrics
from lpsgd.lab.store.run_files import RunConfig, RunResult, is_run, read_result

State = Literal["complete", "diverged", "incomplete", "not started"]


@dataclass(frozen=True)
class RunRecord:
    """One run as its folder tells it. ``history`` has one row for each epoch."""

    label: str
    seed: int
    folder: str
    state: State
    reason: str | None = None
    config: RunConfig | None = None
    environment: Mapping[str, Any] | None = None
    result: RunResult | None = None
    history: tuple[MetricsRow, ...] = ()

    @property
    def optimizer(self) -> str:
        """The optimizer's name in the registry; the label may say more."""
        return self.label if self.config is None else self.config.optimizer.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """The optimizer's settings."""
        return {} if self.config is None else self.config.optimizer.settings

    def setting(self, key: str) -> Any:
        """A field of the recipe, whether the file holds it flat or inside ``recipe``."""
        if self.config is None:
            return None
        flat = getattr(self.config, key, None)
        return self.config.recipe.get(key) if flat is None else flat

    def values(self, metric: str) -> list[float | None]:
        """A metric at every epoch; None where it was not measured."""
        return [row.get(metric) for row in self.history]

    def last(self, metric: str) -> float | None:
        """A metric at the last epoch."""
        return self.history[-1].get(metric) if self.history else None


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
    search_notes: Mapping[str, str] = field(default_factory=dict)


def load_comparison(folder: Path | str) -> Comparison:
    """Read ``folder``: a comparison (with ``comparison.json``), or any folder that holds runs."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a folder; expected a folder that holds runs")
    runs = [load_run(place, folder) for place, found in walk_runs(folder) if found]
    if (manifest := read_comparison(folder)) is not None:
        return _planned(folder, manifest, runs)
    if not runs:
        raise UserError(
            f"no run in {str(folder)!r}: expected folders with config.json and metrics.jsonl, "
            "as `lpsgd train` and `lpsgd compare` write them"
        )
    return _loose(folder, runs)


def load_run(place: Path, root: Path) -> RunRecord:
    """Read one run's folder; ``root`` is what its ``folder`` is told relative to."""
    config, result = read_model(place / "config.json", RunConfig), read_result(place)
    history = read_metrics(place / "metrics.jsonl")
    state: State = "incomplete"
    reason = None if result is None else result.reason
    if result is not None and result.state == "diverged":
        state = "diverged"
    elif result is not None and result.state == "complete":
        if len(history) == result.epochs:
            state = "complete"
        else:  # an earlier epoch must not pass for the last one
            there = f"{len(history)} of {result.epochs} epochs are there"
            reason = f"metrics.jsonl was changed: {there}"
    return RunRecord(
        label=place.name if config is None else config.label or config.optimizer.name,
        seed=0 if config is None else config.seed,
        folder=place.relative_to(root).as_posix(),
        state=state,
        reason=reason,
        config=config,
        environment=read_object(place / "environment.json"),
        result=result,
        history=history,
    )


def _planned(folder: Path, manifest: ComparisonManifest, runs: Sequence[RunRecord]) -> Comparison:
    """The runs that ``comparison.json`` names, in its order; a missing one is 'not started'."""
    if not manifest.optimizers:
        raise UserError(f"{str(folder / 'comparison.json')!r} names no optimizers")
    found: dict[tuple[str, int], RunRecord] = {}
    for run in runs:
        # a copy or another comparison further down may hold a run of the same name
        own = Path(run.folder) == run_place(Path(), run.label, run.seed)
        if (run.label, run.seed) not in found or own:
            found[run.label, run.seed] = run
    listed = tuple(
        found.pop((label, seed), RunRecord(label, seed, "", "not started"))
        for label in manifest.optimizers
        for seed in manifest.seeds
    )
    notes = []
    if found:
        others = ", ".join(f"{label} seed {seed}" for label, seed in sorted(found))
        notes.append(f"In the folder but not part of this comparison: {others}.")
    return Comparison(
        folder=str(folder),
        labels=manifest.optimizers,
        reference=manifest.reference or manifest.optimizers[0],
        seeds=manifest.seeds,
        runs=listed,
        command=manifest.command,
        notes=(*notes, *_mixed(listed)),
        search_notes=manifest.search_notes,
    )


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


def walk_runs(root: Path) -> Iterator[tuple[Path, bool]]:
    """Every folder at or below ``root``, and whether it is a run's; nothing inside a run."""
    for name, folders, files in os.walk(root):
        folders.sort()
        found = "config.json" in files and is_run(Path(name))
        if found:
            folders.clear()
        yield Path(name), found
