"""Where the runs of a folder are, read from their files alone, whoever trains them and where."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.manifest import PlannedRun, read_manifests
from lpsgd.lab.store.run_files import read_error
from lpsgd.lab.store.run_folder import is_running
from lpsgd.lab.store.run_record import RunRecord, load_run, walk_runs

_LAST_EPOCHS = 5  # that the pace is taken from: a machine may be less busy than before


@dataclass(frozen=True)
class RunProgress(PlannedRun):
    """Where one run is. ``state`` is queued, running, interrupted, paused (by a search, until it
    is worth continuing), complete, pruned, diverged or failed; ``epoch`` of ``epochs`` are done."""

    epoch: int = 0
    accuracy: float | None = None
    seconds_per_epoch: float | None = None
    seconds_left: float | None = None
    reason: str | None = None
    note: str | None = None
    """What it does at the moment besides training, if it does."""
    score: str | None = None
    """The score that decides, as text."""

    @property
    def epochs_left(self) -> int | None:
        """Epochs that are to be trained, as far as is known now."""
        last = self.epochs if self.until_epoch is None else self.until_epoch
        return None if last is None else max(0, last - self.epoch)


@dataclass(frozen=True)
class Status:
    """The runs at and below a folder, and the commands that planned them."""

    runs: list[RunProgress]
    commands: list[str]


def read_status(root: Path) -> Status:
    """Read ``root``: a run, a comparison, a sweep, a reproduction, or any folder that holds such.

    Runs that a plan names and that have no folder yet are queued.
    """
    if not root.is_dir():
        raise UserError(f"{str(root)!r} is not a folder; expected a folder that holds runs")
    planned: dict[Path, RunProgress] = {}
    found: list[Path] = []
    commands: list[str] = []
    for folder, is_run in walk_runs(root):
        if is_run:
            found.append(folder)
        for manifest in read_manifests(folder):
            for run in manifest.planned():
                place = Path(os.path.normpath(folder / run.folder))
                planned[place] = RunProgress(**vars(run))
            commands.append(manifest.command or "")
    if not planned and not found and not commands:
        raise UserError(
            f"no run in {str(root)!r}: expected a folder that `lpsgd train`, `compare`, `sweep` "
            "or `reproduce` wrote"
        )
    places = list(dict.fromkeys([*planned, *found]))
    runs = [_progress(place, planned.get(place)) for place in places]
    return Status(runs, [command for command in dict.fromkeys(commands) if command])


def _progress(place: Path, planned: RunProgress | None) -> RunProgress:
    """Where the run in ``place`` is."""
    try:
        run = load_run(place, place)
    except UserError as error:
        known = planned or RunProgress(place.name, 0, "", None, "")
        return replace(known, folder=str(place), state="failed", reason=str(error))
    network = f"{run.setting('model')} / {run.setting('dataset')}"
    begun = planned or RunProgress(run.label, run.seed, network, run.setting("epochs"), "")
    begun = replace(begun, folder=str(place))
    if run.result is not None:
        return _at(replace(begun, state=run.result.state, reason=run.reason), run)
    if is_running(place):
        return _with_time_left(_at(replace(begun, state="running"), run), place)
    if (reason := read_error(place)) is not None:
        return _at(replace(begun, state="failed", reason=reason), run)
    if run.config is None:
        return begun
    at = _at(begun, run)
    if at.state != "queued":  # the search has done with it
        return at
    paused = at.until_epoch is not None and at.epochs_left == 0
    return replace(at, state="paused" if paused else "interrupted")


def _at(begun: RunProgress, run: RunRecord) -> RunProgress:
    seconds = [s for s in run.values("seconds")[-_LAST_EPOCHS:] if s is not None]
    return replace(
        begun,
        epoch=run.history[-1].epoch if run.history else 0,
        accuracy=run.last("accuracy"),
        score=run.history[-1].score[1] if run.history and run.history[-1].score else None,
        seconds_per_epoch=mean(seconds) if seconds else None,
    )


def _with_time_left(at: RunProgress, place: Path) -> RunProgress:
    """From the last epochs' seconds, less what has gone by of the present epoch."""
    if at.seconds_per_epoch is None or at.epochs_left is None:
        return at
    try:
        since = max(0.0, time.time() - (place / "metrics.jsonl").stat().st_mtime)
    except FileNotFoundError:  # a run that begins anew has just removed it
        return at
    left = at.seconds_per_epoch * at.epochs_left - min(since, at.seconds_per_epoch)
    return replace(at, seconds_left=max(0.0, left))
