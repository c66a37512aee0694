"""A run's folder: config.json, environment.json, metrics.jsonl, checkpoints/, result.json.

A run that failed has error.json until it is started again.

Everything after training reads only this folder. Each file is complete or absent; metrics.jsonl
grows by whole lines, and a run that goes on from a checkpoint first cuts it back to what the
checkpoint had seen.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.recipe import Recipe, make_recipe, to_json
from lpsgd.lab.store.files import write_json
from lpsgd.lab.store.jsonio import encode

# What two equal runs may differ in: everything else in metrics.jsonl follows from the recipe.
WALL_CLOCK_FIELDS = ("images_per_second", "seconds", "optimizer_seconds")

# A mark that was not renewed for this long is of a machine that was lost.
ALIVE_SECONDS = 90.0
_ALIVE = ".alive"
_ERROR = "error.json"

_locks: set[int] = set()  # the open folders that this process holds


def _forget_locks() -> None:
    """Close what a fork inherited: a lock is held for as long as any copy of its handle is open.

    Processes that decode images outlive a run that was killed by some seconds, in which the same
    command would find its folder in use.
    """
    for handle in _locks:
        os.close(handle)
    _locks.clear()


os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write into a message that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk is full ({reason}); make room and give the same command again"
        raise LabError(
            f"cannot write to {folder}: {reason}. What was saved before is kept."
        ) from error


@dataclass(frozen=True)
class MetricsMark:
    """How much of metrics.jsonl a checkpoint has seen."""

    size: int
    sha256: str


class RunFolder:
    """One run's folder, opened for training. Use `open_run`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics_path = folder / "metrics.jsonl"
        self.checkpoints = folder / "checkpoints"

    def result(self) -> dict[str, Any] | None:
        """Return how the run ended, or None while it has not."""
        return read_result(self.folder)

    def begin(self, recipe: Recipe, label: str, environment: Mapping[str, Any]) -> None:
        """Record what is going to run, on what; where it began elsewhere, that is kept too."""
        with writing(self.folder):
            if not (self.folder / "config.json").exists():
                write_json(self.folder / "config.json", config(recipe, label))
            path = self.folder / "environment.json"
            write_json(path, _with_earlier(environment, path))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Record that the run ended; after this it is never trained again."""
        with writing(self.folder):
            write_json(self.folder / "result.json", encode(result))

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one line, whole or not at all."""
        line = (json.dumps(encode(record), allow_nan=False) + "\n").encode()
        with writing(self.folder):
            handle = os.open(self.metrics_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                before = os.fstat(handle).st_size
                try:
                    _write_all(handle, line)
                    os.fsync(handle)
                except OSError:
                    os.ftruncate(handle, before)
                    raise
            finally:
                os.close(handle)

    def mark_metrics(self) -> MetricsMark:
        """Describe metrics.jsonl as it is now."""
        data = self.metrics_path.read_bytes() if self.metrics_path.exists() else b""
        return MetricsMark(len(data), hashlib.sha256(data).hexdigest())

    def metrics_reach(self, mark: MetricsMark) -> bool:
        """Tell whether metrics.jsonl still begins with what ``mark`` describes."""
        data = self.metrics_path.read_bytes() if self.metrics_path.exists() else b""
        return hashlib.sha256(data[: mark.size]).hexdigest() == mark.sha256

    def cut_metrics(self, mark: MetricsMark) -> None:
        """Drop the lines written after ``mark``: they will be computed again."""
        with writing(self.folder):
            if mark.size == 0:
                self.metrics_path.unlink(missing_ok=True)
            else:
                os.truncate(self.metrics_path, mark.size)


class Onlooker(RunFolder):
    """The folder for the processes of a run that read what the first one writes."""

    def begin(self, recipe: Recipe, label: str, environment: Mapping[str, Any]) -> None:
        """Leave it to the first process; so do the others here."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """See `begin`."""

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """See `begin`."""

    def cut_metrics(self, mark: MetricsMark) -> None:
        """See `begin`."""


@contextmanager
def open_run(folder: Path, recipe: Recipe) -> Iterator[RunFolder]:
    """Create the folder or take up the one that is there, and hold it against other processes.

    A folder that belongs to another recipe is an error and stays as it is.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    _locks.add(handle)
    try:
        _lock(handle, folder)
        check_folder(folder, recipe)
        with writing(folder):
            (folder / _ERROR).unlink(missing_ok=True)
            # of a process that was killed while writing
            for leftover in [*folder.rglob(".*.part")]:
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink(missing_ok=True)
        try:
            yield RunFolder(folder)
        finally:
            # if the recipe turned out to be wrong before anything was written, leave no folder
            with suppress(OSError):
                folder.rmdir()
    finally:
        _locks.discard(handle)
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    for _ in range(5):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.1)  # `is_held` has it for an instant when somebody looks
    raise LabError(f"{folder} is in use by another process")


def is_held(folder: Path) -> bool:
    """Tell whether a process of this machine trains in ``folder`` now."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def write_error(folder: Path, text: str) -> None:
    """Leave word of why a run failed, until it is started again."""
    with suppress(OSError):  # a disk that is full is what it may be about
        write_json(folder / _ERROR, {"version": 1, "text": text})


def read_error(folder: Path) -> str | None:
    """Return why the run in ``folder`` failed the last time, or None if it did not."""
    try:
        return str(json.loads((folder / _ERROR).read_text(encoding="utf-8"))["text"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{_ERROR} cannot be read: {error}"


def mark_alive(folder: Path, host: str) -> None:
    """Tell machines that share the folder, and do not see the lock, that ``host`` trains in it."""
    with suppress(OSError):
        if (folder / "config.json").exists():
            (folder / _ALIVE).write_text(host, encoding="utf-8")


def unmark_alive(folder: Path) -> None:
    """Take back what `mark_alive` told."""
    with suppress(OSError):
        (folder / _ALIVE).unlink(missing_ok=True)


def marked_by(folder: Path) -> str | None:
    """Return the machine whose mark in ``folder`` is still fresh, if there is one."""
    mark = folder / _ALIVE
    try:
        fresh = time.time() - mark.stat().st_mtime < ALIVE_SECONDS
        return mark.read_text(encoding="utf-8") if fresh else None
    except OSError:
        return None


def is_alive(folder: Path) -> bool:
    """Tell whether a run goes on in ``folder``, here or on a machine that shares it."""
    # a mark of this machine without a lock is that of a process that was killed
    return is_held(folder) or marked_by(folder) not in (None, socket.gethostname())


def config(recipe: Recipe, label: str) -> dict[str, Any]:
    """Return what config.json holds: the recipe, and its main parts where readers look for them."""
    values = to_json(recipe)
    shown = ("dataset", "model", "width", "seed", "epochs", "batch_size", "precision", "threads")
    return {
        "version": 1,
        "label": label,
        "optimizer": {"name": values["optimizer"], "settings": values["settings"]},
        **{name: values[name] for name in shown},
        "recipe": values,
    }


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Raise UserError if ``folder`` holds a run of another recipe or something else altogether."""
    path = folder / "config.json"
    if not path.exists():
        present = folder.iterdir() if folder.is_dir() else ()
        others = [p.name for p in present if not p.name.startswith(".") and p.name != _ERROR]
        if others:
            raise UserError(
                f"{folder} holds other files ({', '.join(sorted(others)[:3])}) and no config.json: "
                "choose another folder"
            )
        return
    try:
        # read as a recipe, so that a field which is newer than the folder has its default
        stored = make_recipe(json.loads(path.read_text(encoding="utf-8"))["recipe"])
    except (OSError, ValueError, KeyError, TypeError, UserError) as error:
        raise UserError(f"{path} cannot be read ({error}): choose another folder") from None
    found, wanted = to_json(stored), to_json(recipe)
    differences = [
        f"{key} is {found[key]!r} there and {wanted[key]!r} here"
        for key in sorted(wanted)
        if found[key] != wanted[key]
    ]
    if differences:
        raise UserError(
            f"{folder} belongs to another recipe: {'; '.join(differences)}. Nothing was changed; "
            "choose another folder with --out"
        )


def _with_earlier(environment: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The environment, with those before it of a run that was moved or upgraded meanwhile."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        earlier = known.pop("earlier", [])
    except (OSError, ValueError, AttributeError):  # none, or damaged
        return dict(environment)
    if known != environment:
        earlier = [*earlier, known]
    return {**environment, "earlier": earlier} if earlier else dict(environment)


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return result.json of a run's folder, or None where the run has not ended."""
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LabError(f"cannot read {folder / 'result.json'}: {error}") from error
    if not isinstance(result, dict) or not {"state", "epochs"} <= result.keys():
        raise LabError(
            f"{folder / 'result.json'} is not the result of a run: it has no state and epochs. "
            "Remove it, and the run goes on from its last checkpoint"
        )
    return result


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
