"""Who works on which trial: locks with a name, which end with their process, however it ends."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, Protocol

from lpsgd.lab.errors import UserError
from lpsgd.lab.search.storage import StorageUrl
from lpsgd.lab.store.disk import lock

# A machine that vanishes from the network keeps its locks for this long, instead of hours.
_KEEPALIVE = {"idle": 60, "interval": 10, "count": 3}


class TrialLocks(Protocol):
    """The locks of one process."""

    def acquire(self, name: str, *, wait: bool = False) -> bool:
        """Take the lock ``name``; tell whether it is held now."""

    def release(self, name: str) -> None:
        """Give a lock back."""

    def close(self) -> None:
        """Give all locks back."""


class FileLocks:
    """Locked files in a folder, for the processes of one machine."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._held: dict[str, int] = {}

    def acquire(self, name: str, *, wait: bool = False) -> bool:
        """Lock the file of this name."""
        path = self._folder / hashlib.sha256(name.encode()).hexdigest()[:16]
        path.touch()
        handle = lock.acquire(path, seconds=math.inf if wait else 0)
        if handle is None:
            return False
        self._held[name] = handle
        return True

    def release(self, name: str) -> None:
        """Unlock it."""
        lock.release(self._held.pop(name))

    def close(self) -> None:
        """Unlock all."""
        for name in list(self._held):
            self.release(name)


class PostgresLocks:
    """Advisory locks of one session: the server drops them when the connection ends."""

    def __init__(self, url: StorageUrl) -> None:
        from sqlalchemy import create_engine, text
        from sqlalchemy.pool import NullPool

        self._text = text
        self._engine = create_engine(
            url.connect_string(), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        self._connection = self._engine.connect()
        for name, value in _KEEPALIVE.items():
            self._connection.execute(text(f"SET tcp_keepalives_{name} = {value}"))

    def acquire(self, name: str, *, wait: bool = False) -> bool:
        """Lock the number that stands for this name."""
        function = "pg_advisory_lock" if wait else "pg_try_advisory_lock"
        return self._call(function, name) is not False

    def release(self, name: str) -> None:
        """Unlock it."""
        self._call("pg_advisory_unlock", name)

    def close(self) -> None:
        """End the session, and with it all its locks."""
        self._connection.close()
        self._engine.dispose()

    def _call(self, function: str, name: str) -> Any:
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        return self._connection.execute(
            self._text(f"SELECT {function}(:key)"), {"key": key}
        ).scalar()


def open_locks(url: StorageUrl) -> TrialLocks:
    """The locks that go with a storage."""
    if not url.server:
        return FileLocks(url.file.with_name(url.file.name + ".locks"))
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise UserError("--storage postgresql://... needs pip install 'lpsgd[postgres]'") from None
    return PostgresLocks(url)
