"""A run's heartbeat: the file ``.alive``, for machines that share its folder but not its lock."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

from lpsgd.lab.store.disk.lock import is_held

# A heartbeat that was not renewed for this long is of a machine that was lost.
HEARTBEAT_TIMEOUT = 90.0
_FILE = ".alive"


def write_heartbeat(folder: Path, host: str) -> None:
    """Tell the other machines that ``host`` trains in ``folder``."""
    with suppress(OSError):
        if (folder / "config.json").exists():
            (folder / _FILE).write_text(host, encoding="utf-8")


def remove_heartbeat(folder: Path) -> None:
    """Tell the other machines that the run in ``folder`` has ended or stopped."""
    with suppress(OSError):
        (folder / _FILE).unlink(missing_ok=True)


def heartbeat_host(folder: Path) -> str | None:
    """Return the machine whose heartbeat in ``folder`` is fresh, if there is one."""
    path = folder / _FILE
    try:
        fresh = time.time() - path.stat().st_mtime < HEARTBEAT_TIMEOUT
        return path.read_text(encoding="utf-8") if fresh else None
    except OSError:
        return None


def is_running(folder: Path) -> bool:
    """Tell whether a run is trained in ``folder``, here or on a machine that shares it."""
    # a heartbeat of this machine without a lock is that of a process that was killed
    return is_held(folder) or heartbeat_host(folder) not in (None, socket.gethostname())
