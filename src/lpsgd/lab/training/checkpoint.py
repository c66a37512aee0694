"""Checkpoints that are either intact, or recognised as damaged.

A file's name holds the digest of its bytes, so name and content appear together in one rename. The
last two are kept; a damaged one is passed over for the one before it. They load with
``weights_only=True``: nothing in them can run code.

One process writes a file, several write a folder (`lpsgd.lab.training.parallel.checkpoint`); either
can be read by any number of processes.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lpsgd.lab.errors import LabError
from lpsgd.lab.store.disk.files import remove, write_bytes
from lpsgd.lab.training.parallel.world import ALONE, World

KEEP = 2
SUFFIX = ".dcp"  # of the folders that several processes write
_NAME = re.compile(rf"step-\d{{9}}-[0-9a-f]{{32}}(\.pt|\{SUFFIX})")


class CheckpointStore:
    """The checkpoints in one folder, newest first. All processes of a run save together."""

    def __init__(self, folder: Path, warn: Callable[[str], None], world: World = ALONE) -> None:
        self.folder = folder
        self._warn = warn
        self._world = world
        self._proved = False

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Write ``state`` as the checkpoint of ``step``; remove what is older than the last two."""
        stem = f"step-{step:09d}"
        if self._world.together:
            # slow to import, and seldom needed
            from lpsgd.lab.training.parallel import checkpoint as dcp

            tensors, rest = dcp.split(state)
            path = dcp.write(self.folder, stem, tensors, self._bytes(rest), self._world)
        else:
            data = self._bytes(state)
            path = self.folder / f"{stem}-{_digest(data)}.pt"
            write_bytes(path, data)
        past = [p for p in self._paths() if p != path]
        # one of a later step was passed over as damaged: it must not take an intact one's place
        useless = [p for p in past if int(p.name.split("-")[1]) > step]
        older = [p for p in past if p not in useless]
        self._remove([*useless, *older[KEEP - 1 :]])
        return path

    def _bytes(self, state: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        if not self._proved:  # better to learn now than after a night
            try:
                torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            except Exception as error:
                raise LabError(
                    "this optimizer or model keeps state that is not tensors and plain values, so "
                    f"a checkpoint of it could not be loaded safely: {error}"
                ) from error
            self._proved = True
        return data

    def load(self) -> Iterator[dict[str, Any]]:
        """Yield the states that can be read, newest first; say which ones are damaged."""
        for path in self._paths():
            state = read_checkpoint(path)
            if state is None:
                self._warn(f"{path} is damaged; using the checkpoint before it")
                continue
            self._proved = True
            yield state

    def keep_only(self, path: Path) -> None:
        """Remove every checkpoint but ``path``: a finished run needs its last weights alone."""
        self._remove([old for old in self._paths() if old != path])

    def _remove(self, paths: list[Path]) -> None:
        for path in paths if self._world.main else []:
            remove(path)

    def _paths(self) -> list[Path]:
        found = (p for p in self.folder.glob("step-*") if _NAME.fullmatch(p.name))
        return sorted(found, reverse=True)


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return the state in one checkpoint, or None if it is not what was written."""
    if path.suffix == SUFFIX:
        from lpsgd.lab.training.parallel import checkpoint as dcp

        return dcp.read(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        if error.errno == errno.EIO:  # how a disk tells of a damaged block
            return None
        raise LabError(f"cannot read {path}: {error.strerror}. Nothing was changed") from error
    if _digest(data) != path.stem.rpartition("-")[2]:
        return None
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # named after its bytes, and yet nothing that was written here
        return None
    return state if isinstance(state, dict) else None


@contextmanager
def fitting(where: Path) -> Iterator[None]:
    """An error of our own for a state that cannot be loaded: another network's, or nobody's."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise LabError(
            f"a checkpoint in {where} is not of this run ({what}). Nothing was changed"
        ) from error


def is_checkpoint(path: Path) -> bool:
    """Whether this is one checkpoint, not the folder of a run."""
    return path.is_file() or path.suffix == SUFFIX


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
