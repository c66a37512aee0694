"""Where trials are kept: an SQLite file, or a PostgreSQL server that many machines share.

With it go locks with a name, one for each trial that somebody works on; they end with their
process, however it ends.

A password may be part of the URL. It is used to connect and appears in nothing else: what is
printed, written or raised names the storage by `StorageUrl.shown`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from lpsgd.lab.errors import LabError, UserError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

ALLOWED = "sqlite:///FILE or postgresql://USER@HOST:PORT/DATABASE"
# A machine that vanishes from the network keeps its locks for this long, instead of hours.
_KEEPALIVE = {"idle": 60, "interval": 10, "count": 3}
_SECRET = re.compile(r"://[^:/@]*:(.*)@", re.DOTALL)


class StorageUrl:
    """A checked address, which can be shown without its password."""

    def __init__(self, text: str) -> None:
        from sqlalchemy.engine import URL, make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            raise UserError(f"--storage: not an address; write {ALLOWED}") from None
        query = dict(url.query)
        password = query.pop("password", url.password)
        if not isinstance(password, str | None):
            raise UserError("--storage: the address has two passwords")
        found = _SECRET.search(text)
        self._secrets = _spellings(password, found.group(1) if found else None)
        kind = url.drivername.partition("+")[0].replace("postgresql", "postgres")
        if kind not in ("sqlite", "postgres"):
            raise UserError(f"--storage: {kind[:20]!r} is not supported; write {ALLOWED}")
        if found and "@" in found.group(1):
            raise UserError(
                "--storage: write @ as %40, / as %2F and : as %3A within a password, or give it by "
                "PGPASSWORD or ~/.pgpass"
            )
        self.shared = True  # somebody chose it, who may tell other processes of it
        self.server = kind == "postgres"
        if self.server:
            url = URL.create(
                "postgresql+psycopg",
                url.username,
                password,
                url.host,
                url.port,
                url.database,
                query,
            )
        elif not url.database or url.database == ":memory:":
            raise UserError("--storage: an SQLite storage is a file; write sqlite:///FILE")
        self._url = url

    @classmethod
    def of_file(cls, path: Path) -> StorageUrl:
        """The SQLite file of one sweep alone, whatever characters its path has."""
        from sqlalchemy.engine import URL

        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise UserError(
                f"--out {path}: the name of this folder is not UTF-8, which its storage needs; "
                "choose another folder, or give --storage"
            ) from None
        made = cls("sqlite:///file")
        made.shared = False
        made._url = URL.create("sqlite", database=str(path))
        return made

    @property
    def shown(self) -> str:
        """The address for people: no password, and no options, which might hold another."""
        plain = self._url.set(query={}, drivername="postgresql" if self.server else "sqlite")
        return plain.render_as_string(hide_password=True)

    @property
    def file(self) -> Path:
        """The file of an SQLite storage."""
        return Path(str(self._url.database))

    def connect_string(self) -> str:
        """The address as drivers need it, password included. For no other use."""
        return self._url.render_as_string(hide_password=False)

    def scrub(self, text: str) -> str:
        """``text`` without the password, however it is spelt."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def __repr__(self) -> str:
        return f"StorageUrl({self.shown!r})"


def _spellings(*passwords: str | None) -> list[str]:
    known = {spell(p) for p in passwords if p for spell in (str, quote, quote_plus, repr)}
    return sorted(known, key=len, reverse=True)


@contextmanager
def reaching(url: StorageUrl) -> Iterator[None]:
    """Turn the errors of drivers into one that says what to do and holds no password."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError, OSError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        cause = getattr(cause, "orig", None) or cause or error
        reason = " ".join(url.scrub(str(cause)).split())[:300]
        # `from None`: the drivers' own messages and frames stay out of every traceback
        raise LabError(
            f"cannot use the storage {url.shown}: {reason}. What was trained is kept; the same "
            "command resumes once that is fixed"
        ) from None


def open_storage(url: StorageUrl) -> RDBStorage:
    """optuna's storage at this address; its tables are made if there are none."""
    from optuna.storages import RDBStorage

    if not url.server:
        url.file.parent.mkdir(parents=True, exist_ok=True)
        # another process may be writing: wait for it
        return RDBStorage(url.connect_string(), engine_kwargs={"connect_args": {"timeout": 60}})
    return RDBStorage(url.connect_string(), engine_kwargs={"pool_pre_ping": True})


class FileLocks:
    """Locks on the bytes of one file, one byte for each name, among the processes of one machine.

    One open file serves thousands of trials. Such locks belong to the process: a second object for
    the same file in one process would not be kept out.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def acquire(self, name: str, *, wait: bool = False) -> bool:
        """Lock the byte of this name, which need not be within the file."""
        how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.lockf(self._file, how, 1, _number(name, size=7))
        except (BlockingIOError, PermissionError):  # systems differ in how they say it
            return False
        return True

    def release(self, name: str) -> None:
        """Unlock it."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _number(name, size=7))

    def close(self) -> None:
        """Unlock all."""
        os.close(self._file)


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
        key = _number(name, size=8, signed=True)
        return self._connection.execute(
            self._text(f"SELECT {function}(:key)"), {"key": key}
        ).scalar()


def _number(name: str, *, size: int, signed: bool = False) -> int:
    """A number that stands for ``name``."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:size], signed=signed)


def open_locks(url: StorageUrl) -> FileLocks | PostgresLocks:
    """The locks that go with a storage."""
    if not url.server:
        return FileLocks(url.file.with_name(f"{url.file.name}.lock"))
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise UserError("--storage postgresql://... needs pip install 'lpsgd[postgres]'") from None
    return PostgresLocks(url)
