"""Locks that end with their process, however it ends: ``flock`` on a file or folder that exists.

Not filelock: its locks are files of their own, which stay behind in every folder, need the right to
write there, and are exclusive even for who only looks, so that two who look would take each other
for a run. Folders that an earlier version holds are seen as held.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.1

_held: set[int] = set()


def _forget_locks() -> None:
    """Close what a fork inherited: a lock is held for as long as any copy of its handle is open.

    Processes that decode images outlive a run that was killed by some seconds, in which the same
    command would find its folder in use.
    """
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)


def acquire(path: Path, *, seconds: float) -> int | None:
    """Lock ``path`` and return what `release` takes; None if it is held for ``seconds`` more."""
    deadline = time.monotonic() + seconds
    handle = os.open(path, os.O_RDONLY)
    _held.add(handle)
    try:
        while not _locked(handle, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                release(handle)
                return None
            time.sleep(_POLL_SECONDS)
    except BaseException:
        release(handle)
        raise
    return handle


def release(handle: int) -> None:
    """Give a lock back."""
    _held.discard(handle)
    os.close(handle)


@contextmanager
def holding(path: Path, *, seconds: float = math.inf) -> Iterator[bool]:
    """Hold the lock of ``path`` for a while; False if another process has it for ``seconds``."""
    handle = acquire(path, seconds=seconds)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            release(handle)


def is_held(path: Path) -> bool:
    """Tell whether a process of this machine has locked ``path``; needs no right to write there."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _locked(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
