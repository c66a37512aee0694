"""Made-up trials, and a PostgreSQL server of one's own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "s3cr3t%2Fw0rd"  # as written in an address; what the server knows is s3cr3t/w0rd


@dataclass(frozen=True)
class Server:
    """Where the server listens."""

    port: int

    def url(self, database: str, password: str | None = PASSWORD) -> str:
        secret = "" if password is None else f":{password}"
        return f"postgresql://lpsgd{secret}@127.0.0.1:{self.port}/{database}"

    def make_database(self, name: str) -> str:
        """Make an empty database and return its address."""
        import psycopg

        address = self.url("postgres")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)


def _program(name: str) -> str | None:
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(versions[-1]) if versions else shutil.which(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server with password authentication, gone after the tests."""
    initdb, control = _program("initdb"), _program("pg_ctl")
    if initdb is None or control is None:
        pytest.skip("needs a PostgreSQL server: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="needs pip install 'lpsgd[postgres]'")
    as_user: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="lpsgd-postgres-"))
    try:
        if os.geteuid() == 0:  # the server refuses to run as root
            try:
                user = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("needs the user postgres, as which the server runs")
            os.chown(folder, user.pw_uid, user.pw_gid)
            as_user = ["runuser", "-u", "postgres", "--"]
        secret = folder / "secret"
        secret.write_text("s3cr3t/w0rd\n")
        secret.chmod(0o644)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        data = str(folder / "data")
        make = [initdb, "-D", data, "-U", "lpsgd", "--auth=scram-sha-256", "--pwfile", str(secret)]
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        start = [control, "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start"]
        for command in (make, start):
            subprocess.run([*as_user, *command], check=True, capture_output=True, cwd="/")
        yield Server(port)
        stop = [control, "-D", data, "-m", "immediate", "stop"]
        subprocess.run([*as_user, *stop], check=True, capture_output=True, cwd="/")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fake(fake_trials: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make trials up and draw no figures, which takes longest; returns the log of the trials."""
    monkeypatch.setattr("lpsgd.lab.search.report.page.all_figures", lambda outcome: [])
    return fake_trials


@pytest.fixture
def fake_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make trials up; returns the file that logs them."""
    from . import fake_training

    monkeypatch.setattr("lpsgd.lab.search.run.run_tasks", fake_training.run_tasks)
    log = tmp_path / "trained.log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    return log
