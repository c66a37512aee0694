"""Where the runs of a folder are, read from their files alone, whoever trains them and where."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.execution.progress import RunProgress
from lpsgd.lab.store.run_folder import is_alive, read_error
from lpsgd.lab.store.run_record import RunRecord, is_run, load_run, read_json, run_place

_LAST_EPOCHS = 5  # that the pace is taken from: a machine may be less busy than before
_PLANS = ("comparison.json", "sweep.json", "plan.json")


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
    for folder, files in _walk(root):
        if "config.json" in files and _is_run(folder):
            found.append(folder)
        for name in _PLANS:
            # a sweep's plan follows as soon as it knows its first trials
            if name in files and not (name == "sweep.json" and "plan.json" in files):
                plan = read_json(folder / name)
                try:
                    planned |= {_plain(folder / run.folder): run for run in _runs_of(name, plan)}
                except (TypeError, KeyError, AttributeError):
                    raise UserError(f"{str(folder / name)!r} is damaged: not a plan") from None
                commands.append(str(plan.get("command") or ""))
    if not planned and not found and not commands:
        raise UserError(
            f"no run in {str(root)!r}: expected a folder that `lpsgd train`, `compare`, `sweep` "
            "or `reproduce` wrote"
        )
    places = list(dict.fromkeys([*planned, *found]))
    runs = [_progress(place, planned.get(place)) for place in places]
    return Status(runs, [command for command in dict.fromkeys(commands) if command])


def _walk(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder with its files; nothing inside a run."""
    for name, folders, files in os.walk(root):
        folders.sort()
        yield Path(name), files
        if "config.json" in files and _is_run(Path(name)):
            folders.clear()


def _is_run(folder: Path) -> bool:
    try:
        return is_run(folder)
    except UserError:
        return True  # it cannot be read, which will be told


def _plain(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _runs_of(name: str, plan: Mapping[str, Any]) -> Iterator[RunProgress]:
    """The runs that a plan's file names; their folders are told relative to that file."""
    if name == "comparison.json":
        network = f"{plan.get('model')} / {plan.get('dataset')}"
        for seed in plan.get("seeds", ()):
            for label in plan.get("optimizers", ()):
                place = run_place(Path(), label, seed).as_posix()
                yield _checked(RunProgress(label, seed, network, plan.get("epochs"), place))
    elif name == "plan.json":
        for run in plan.get("runs", ()):
            yield _checked(
                RunProgress(
                    run["label"],
                    run["seed"],
                    run["network"],
                    run["epochs"],
                    run["folder"],
                    state=run.get("state", "queued"),
                    until_epoch=run.get("until_epoch"),
                )
            )


def _checked(run: RunProgress) -> RunProgress:
    """The run, or a TypeError if its values are not of the types that they claim."""
    texts = (run.label, run.network, run.folder, run.state)
    numbers = (run.seed, run.epochs or 0, run.until_epoch or 0)
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(n, int) for n in numbers):
        raise TypeError
    return run


def _progress(place: Path, planned: RunProgress | None) -> RunProgress:
    """Where the run in ``place`` is."""
    try:
        run = load_run(place, place)
    except UserError as error:
        known = planned or RunProgress(place.name, 0, "", None, "")
        return replace(known, folder=str(place), state="failed", reason=str(error))
    begun = planned or RunProgress(run.label, run.seed, _network(run), _epochs(run), "")
    begun = replace(begun, folder=str(place))
    if run.result:
        state = str(run.result.get("state"))
        return _at(replace(begun, state=state, reason=run.reason), run)
    if is_alive(place):
        return _with_time_left(_at(replace(begun, state="running"), run), place)
    if (reason := read_error(place)) is not None:
        return _at(replace(begun, state="failed", reason=reason), run)
    if not run.config:
        return begun
    at = _at(begun, run)
    if at.state != "queued":  # the search has done with it
        return at
    paused = at.until_epoch is not None and at.epochs_left == 0
    return replace(at, state="paused" if paused else "interrupted")


def _network(run: RunRecord) -> str:
    return f"{run.setting('model')} / {run.setting('dataset')}"


def _epochs(run: RunRecord) -> int | None:
    epochs = run.setting("epochs")
    return None if epochs is None else int(epochs)


def _at(begun: RunProgress, run: RunRecord) -> RunProgress:
    seconds = [s for s in run.values("seconds")[-_LAST_EPOCHS:] if s is not None]
    accuracy, epoch = run.last("test_top1"), run.last("epoch") or 0.0
    return replace(
        begun,
        epoch=int(epoch) if math.isfinite(epoch) else 0,
        accuracy=run.last("val_top1") if accuracy is None else accuracy,
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
