"""Storages: addresses without passwords, claims that end with their process, real PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lpsgd.lab.cli import app as cli
from lpsgd.lab.errors import UserError
from lpsgd.lab.search.storage import FileLocks, PostgresLocks, StorageUrl
from lpsgd.lab.store.command_line import hide_passwords

from .conftest import PASSWORD, Server
from .fake_training import studies
from .test_sweep_command import SMALL, SPACE, outcome, run_faking

SECRETS = (PASSWORD, "s3cr3t", "w0rd")


def test_what_is_shown_of_an_address() -> None:
    url = StorageUrl("postgresql://me:a%2Fb@host:5433/db?sslmode=require&password=zzz")
    assert url.shown == "postgresql://me:***@host:5433/db"
    assert url.server
    assert "zzz" in url.connect_string()
    assert url.connect_string().startswith("postgresql+psycopg://me:zzz@host:5433/db")
    assert url.scrub("for user me: zzz or a%2Fb") == "for user me: *** or ***"
    assert "zzz" not in repr(url)
    assert StorageUrl("postgres://host/db").shown == "postgresql://host/db"
    assert StorageUrl("sqlite:///a/b.db").file == Path("a/b.db")
    with pytest.raises(UserError, match="write @ as %40"):
        StorageUrl("postgresql://me:a@b@host/db")


def test_commands_are_shown_without_passwords() -> None:
    typed = ["--storage=postgresql://me:p@ss:w/rd@host/db", "--x", "a?password=b&c=d"]
    assert hide_passwords(typed) == [
        "--storage=postgresql://me:***@host/db",
        "--x",
        "a?password=***&c=d",
    ]
    assert hide_passwords(["--out", "a:b@c", "sqlite:///x"]) == ["--out", "a:b@c", "sqlite:///x"]


OTHER_PROCESS = """
import os, signal, sys
from pathlib import Path
from lpsgd.lab.search.storage import FileLocks

locks = FileLocks(Path(sys.argv[1]))
for line in sys.stdin:
    if line == "die\\n":
        os.kill(os.getpid(), signal.SIGKILL)
    action, name = line.strip().split(":")
    print(getattr(locks, action)(name), flush=True)
"""


def test_file_claims_exclude_each_other_and_end_with_their_process(tmp_path: Path) -> None:
    one = FileLocks(tmp_path / "lock")
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:

        def other(action: str) -> str:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(f"{action}\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        assert one.acquire("trial 1")
        assert other("acquire:trial 1") == "False"
        assert other("acquire:trial 2") == "True"
        assert not one.acquire("trial 2")
        one.release("trial 1")
        assert other("acquire:trial 1") == "True"
        assert other("release:trial 2") == "None"
        assert one.acquire("trial 2")
        assert not one.acquire("trial 1")
        other("die")
        child.wait()
    assert one.acquire("trial 1", wait=True)
    one.close()


@pytest.fixture
def space(tmp_path: Path) -> str:
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return str(path)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_no_secret(*texts: str | bytes) -> None:
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        for secret in SECRETS:
            assert secret.encode() not in data


def test_what_others_may_share_is_claimed_only_when_it_can_be_started(
    space: str, tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from . import fake_training

    begun: list[int] = []

    def run_tasks(tasks: Any, choice: Any, options: Any, problem: Any) -> list[str]:
        begun.append(len(tasks))
        return fake_training.run_tasks(tasks, choice, options)

    monkeypatch.setattr("lpsgd.lab.search.run.run_tasks", run_tasks)
    common = ["sweep", "--space", space, *SMALL, "--trials", "4", "--jobs", "3", "--out"]
    assert cli.main([*common, str(tmp_path / "a")]) == 0
    assert begun == [8], "alone, none waits for another"
    begun.clear()
    shared = [*common, str(tmp_path / "b"), "--storage", f"sqlite:///{tmp_path}/shared.db"]
    assert cli.main(shared) == 0
    assert begun == [3, 3, 2]
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")


# ---------------------------------------------------------------------- a real server


def test_postgres_claims_end_with_the_connection(postgres: Server) -> None:
    url = StorageUrl(postgres.make_database("claims"))
    one, other = PostgresLocks(url), PostgresLocks(url)
    assert one.acquire("trial 1")
    assert not other.acquire("trial 1")
    one.close()
    assert other.acquire("trial 1", wait=True)  # the server takes a moment to end the session
    other.close()


def test_postgres_gives_what_sqlite_gives_and_no_password_is_written(
    space: str,
    tmp_path: Path,
    fake: Path,
    postgres: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = postgres.make_database("one")
    common = ["sweep", "--space", space, *SMALL, "--trials", "8", "--pruner", "halving"]
    shared = [*common, "--out", str(tmp_path / "postgres"), "--storage", url]
    monkeypatch.setattr(sys, "argv", ["lpsgd", *shared])
    assert cli.main(shared) == 0
    assert_no_secret(*capsys.readouterr(), *everything(tmp_path / "postgres").values())
    kept = json.loads((tmp_path / "postgres/sweep.json").read_text())
    assert kept["storage"] == f"postgresql://lpsgd:***@127.0.0.1:{postgres.port}/one"
    assert "lpsgd:***@127.0.0.1" in kept["command"]
    assert cli.main([*common, "--out", str(tmp_path / "sqlite")]) == 0
    assert outcome(tmp_path / "postgres") == outcome(tmp_path / "sqlite")
    # another folder on the same storage: everything is known already
    before = fake.read_text()
    assert cli.main([*common, "--out", str(tmp_path / "again"), "--storage", url]) == 0
    assert fake.read_text() == before
    assert outcome(tmp_path / "again") == outcome(tmp_path / "sqlite")


def test_the_password_may_come_from_the_environment(
    space: str, tmp_path: Path, fake: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.make_database("environment")
    monkeypatch.setenv("PGPASSWORD", "s3cr3t/w0rd")
    monkeypatch.setenv("LPSGD_STORAGE", postgres.url("environment", None))
    arguments = ["sweep", "--space", space, *SMALL, "--trials", "4", "--out", str(tmp_path / "out")]
    assert cli.main(arguments) == 0
    assert_no_secret(*everything(tmp_path / "out").values())
    kept = json.loads((tmp_path / "out/sweep.json").read_text())
    assert kept["storage"] == postgres.url("environment", None)


@pytest.mark.slow
def test_two_processes_share_the_trials_and_run_none_twice(
    space: str, tmp_path: Path, postgres: Server
) -> None:
    url = postgres.make_database("two")
    log = tmp_path / "two.log"
    command = [
        sys.executable,
        "-m",
        "tests.lab.search.fake_training",
        "sweep",
        "--space",
        space,
        *SMALL,
    ]
    command += ["--trials", "14", "--jobs", "1", "--out"]
    environment = {**os.environ, "FAKE_LOG": str(log), "FAKE_SECONDS": "0.3", "LPSGD_STORAGE": url}
    processes = [
        subprocess.Popen(
            [*command, str(tmp_path / name)],
            env=environment,
            cwd=Path(__file__).parents[3],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for process in processes:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert_no_secret(out, errors)
    lines = [line.split() for line in log.read_text().splitlines()]
    trials = Counter("/".join(folder.split("/")[-3:]) for _, folder, _, _ in lines)
    assert len(trials) == 28
    assert set(trials.values()) == {1}
    assert len({pid for pid, *_ in lines}) == 2  # both worked
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    for study in studies(url):
        assert len({str(t.params) for t in study.trials}) == 14


@pytest.mark.slow
def test_what_a_killed_process_left_is_taken_up_by_another(
    space: str, tmp_path: Path, postgres: Server
) -> None:
    url = postgres.make_database("killed")
    options = ["sweep", "--space", space, *SMALL, "--trials", "8", "--pruner", "halving"]
    options += ["--storage", url, "--out"]
    log = tmp_path / "log"
    killed = run_faking([*options, str(tmp_path / "a")], log, FAKE_KILL_AFTER="5")
    assert killed.returncode < 0
    assert run_faking([*options, str(tmp_path / "b")], log).returncode == 0
    assert run_faking([*options, str(tmp_path / "a")], log).returncode == 0
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    # only the training in whose middle the process died was begun twice
    begun = Counter(
        ("/".join(folder.split("/")[-3:]), goal)
        for _, folder, _, goal in (line.split() for line in log.read_text().splitlines())
    )
    assert sorted(begun.values())[-2:] == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda url: url.replace(PASSWORD, "wr0ng-s3cr3t"), "password authentication failed"),
        (lambda url: url.replace("/none", "/no-such-database"), "does not exist"),
        (lambda url: re.sub(r":\d+/none", ":1/none", url), "refused"),
    ],
)
def test_a_storage_that_cannot_be_reached(
    space: str,
    tmp_path: Path,
    postgres: Server,
    capsys: pytest.CaptureFixture[str],
    change: Any,
    message: str,
) -> None:
    url = change(postgres.url("none"))
    arguments = ["sweep", "--space", space, *SMALL, "--out", str(tmp_path / "out")]
    assert cli.main([*arguments, "--storage", url]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert_no_secret(*shown, *everything(tmp_path / "out").values())


def test_a_server_that_goes_away_is_an_error_without_a_traceback(
    space: str,
    tmp_path: Path,
    fake: Path,
    postgres: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import psycopg

    from . import fake_training

    url = postgres.make_database("gone")

    def close_connections(tasks: Any, choice: Any, options: Any, problem: Any) -> list[str]:
        fake_training.run_tasks(tasks, choice, options)
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'gone'"
            )
        return []

    monkeypatch.setattr("lpsgd.lab.search.run.run_tasks", close_connections)
    arguments = ["sweep", "--space", space, *SMALL, "--trials", "4", "--storage", url]
    arguments += ["--out", str(tmp_path / "out")]
    assert cli.main(arguments) == 1
    shown = capsys.readouterr()
    assert "cannot use the storage postgresql://lpsgd:***@127.0.0.1" in shown.err
    assert_no_secret(*shown)
    monkeypatch.setattr("lpsgd.lab.search.run.run_tasks", fake_training.run_tasks)
    assert cli.main(arguments) == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files by /proc")
def test_claims_need_one_open_file(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    locks = FileLocks(tmp_path / "lock")
    assert all(locks.acquire(f"trial {k}") for k in range(5000))
    assert open_files() == before + 1
    locks.close()


@pytest.mark.slow
def test_a_sweep_of_thousands_of_trials_needs_few_open_files() -> None:
    """5,000 trials that are all claimed at once, where a process may have 256 files open."""
    limited = ["bash", "-c", 'ulimit -n 256; exec "$@"', "bash", sys.executable]
    arguments = "sweep --space space.toml --out out --epochs 1 --width 8 --json"
    # in memory, if possible: what takes longest is to flush each score to the disk
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        lr = "lr = { low = 1e-3, high = 1.0, log = true, points = 2500 }"
        Path(folder, "space.toml").write_text(f"[sgd]\n{lr}\n[adamw]\n{lr}\n")
        done = subprocess.run(
            [*limited, "-m", "tests.lab.search.fake_training", *arguments.split()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [w["trials"] for w in json.loads(done.stdout)["winners"]] == [2500, 2500]
