"""A run's folder: config.json, environment.json, metrics.jsonl, checkpoints/, result.json.

A run that failed has error.json until it is started again. The process that trains holds a lock on
the folder and, for machines that share the folder but not its lock, a heartbeat: the file .alive.

Everything after training reads only this folder. Each file is complete or absent; metrics.jsonl
grows by complete lines, and a run that resumes from a checkpoint first truncates it to what the
checkpoint had seen.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.recipe import Recipe, make_recipe, to_json
from lpsgd.lab.store.disk import lock
from lpsgd.lab.store.disk.files import remove, writing
from lpsgd.lab.store.disk.jsonio import read_json, write_json
from lpsgd.lab.store.metrics_file import MetricsFile
from lpsgd.lab.store.run_files import ERROR_FILE, RunConfig, write_environment

# A heartbeat that was not renewed for this long is of a machine that was lost.
HEARTBEAT_TIMEOUT = 90.0
_HEARTBEAT_FILE = ".alive"
_LOOK_SECONDS = 0.5  # `lock.is_held` has a lock for an instant when somebody looks


class RunFolder:
    """One run's folder. The process that `open_run` gives it to writes; others may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = MetricsFile(folder / "metrics.jsonl")
        self.checkpoints = folder / "checkpoints"

    def begin(self, recipe: Recipe, label: str, environment: dict[str, Any]) -> None:
        """Record what is going to run, on what; where it began elsewhere, that is kept too."""
        with writing(self.folder):
            path = self.folder / "config.json"
            if not path.exists():
                write_json(path, RunConfig.of(recipe, label).model_dump())
            write_environment(self.folder, environment)


@contextmanager
def open_run(folder: Path, recipe: Recipe) -> Iterator[RunFolder]:
    """Create the folder or take up the one that is there, and hold it against other processes.

    A folder that belongs to another recipe is an error and stays as it is.
    """
    made = not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock.holding(folder, seconds=_LOOK_SECONDS) as held:
        if not held:
            raise LabError(f"{folder} is in use by another process")
        check_folder(folder, recipe)
        with writing(folder):
            (folder / ERROR_FILE).unlink(missing_ok=True)
            for part in [*_leftovers(folder)]:
                remove(part)
        try:
            yield RunFolder(folder)
        finally:
            # if the recipe turned out to be wrong before anything was written, leave no folder
            if made:
                with suppress(OSError):
                    folder.rmdir()


def final_checkpoint(place: Path) -> Path:
    """The newest checkpoint in a run's folder, or ``place`` itself if that is one."""
    with suppress(OSError, ValueError):  # a name that cannot be one is not there either
        if found := sorted((place / "checkpoints").glob("step-*")):
            return found[-1]
        if place.name.startswith("step-") and place.exists():
            return place
    raise UserError(f"start is {place}; allowed: the folder of a run that has a checkpoint, or one")


def _leftovers(folder: Path) -> Iterator[Path]:
    """What a process that was killed while writing left behind; nothing that is not a run's."""
    for name in ("config.json", "environment.json", "result.json", "curvature.jsonl", ERROR_FILE):
        yield from folder.glob(f".{name}.*.part")
    yield from (folder / "checkpoints").glob(".step-*.part")


def run_of(source: Path) -> Path:
    """Return the run's folder, given itself or one of its checkpoints."""
    for folder in (source, source.parent.parent):
        if (folder / "config.json").is_file():
            return folder
    raise UserError(f"{source} is neither a run's folder (with config.json) nor its checkpoint")


def read_recipe(folder: Path) -> Recipe:
    """Return what the run in ``folder`` trains; a field that is newer than it has its default."""
    path = folder / "config.json"
    try:
        stored = read_json(path)["recipe"]
        return make_recipe(dict(stored), source=str(path))
    except (OSError, KeyError, TypeError, ValueError, UserError) as error:
        raise UserError(f"{path} cannot be read ({error})") from None


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Raise UserError if ``folder`` holds a run of another recipe or something else altogether."""
    path = folder / "config.json"
    if not path.exists():
        present = folder.iterdir() if folder.is_dir() else ()
        others = [p.name for p in present if not p.name.startswith(".") and p.name != ERROR_FILE]
        if others:
            raise UserError(
                f"{folder} holds other files ({', '.join(sorted(others)[:3])}) and no config.json: "
                "choose another folder"
            )
        return
    try:
        stored = read_recipe(folder)
    except UserError as error:
        raise UserError(f"{error}: choose another folder") from None
    found, wanted = to_json(stored), to_json(recipe)
    differences = [
        f"{key} is {found.get(key)!r} there and {wanted.get(key)!r} here"
        for key in sorted(found.keys() | wanted.keys())
        if found.get(key) != wanted.get(key)
    ]
    if differences:
        raise UserError(
            f"{folder} belongs to another recipe: {'; '.join(differences)}. Nothing was changed; "
            "choose another folder with --out"
        )


# ---------------------------------------------------------------------- who trains in it


def write_heartbeat(folder: Path, host: str) -> None:
    """Tell the other machines that ``host`` trains in ``folder``."""
    with suppress(OSError):
        if (folder / "config.json").exists():
            (folder / _HEARTBEAT_FILE).write_text(host, encoding="utf-8")


def remove_heartbeat(folder: Path) -> None:
    """Tell the other machines that the run in ``folder`` has ended or stopped."""
    with suppress(OSError):
        (folder / _HEARTBEAT_FILE).unlink(missing_ok=True)


def heartbeat_host(folder: Path) -> str | None:
    """Return the machine whose heartbeat in ``folder`` is fresh, if there is one."""
    path = folder / _HEARTBEAT_FILE
    try:
        # clocks differ between machines, but a heartbeat of the far future tells nothing
        fresh = abs(time.time() - path.stat().st_mtime) < HEARTBEAT_TIMEOUT
        return path.read_text(encoding="utf-8") if fresh else None
    except OSError:
        return None


def is_running(folder: Path) -> bool:
    """Tell whether a run is trained in ``folder``, here or on a machine that shares it."""
    # a heartbeat of this machine without a lock is that of a process that was killed
    return lock.is_held(folder) or heartbeat_host(folder) not in (None, socket.gethostname())
