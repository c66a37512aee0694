"""Locks that end with their process, however it ends: ``flock`` on a file or folder that exists.

Not filelock: its locks are files of their own, which stay behind in every folder, need the right to
write there, and are exclusive even for who only looks, so that two who look would take each other
for a run. Folders that an earlier version holds are seen as held.
"""

from __future__ import annotations

import fcntl
import os
import time
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


def acquire(path: Path, *, seconds: float = 0.0) -> int | None:
    """Lock ``path`` and return what `release` takes; None if it is held for ``seconds`` more."""
    deadline = time.monotonic() + seconds
    handle = os.open(path, os.O_RDONLY)
    _held.add(handle)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_POLL_SECONDS)
            else:
                return handle
    except BaseException:
        release(handle)
        raise
    release(handle)
    return None


def release(handle: int) -> None:
    """Give a lock back."""
    _held.discard(handle)
    os.close(handle)


def is_held(path: Path) -> bool:
    """Tell whether a process of this machine has locked ``path``; needs no right to write there."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
