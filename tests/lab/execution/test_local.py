"""Processes that are kept from one list of runs to the next."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from lpsgd.lab.errors import LabError
from lpsgd.lab.events import RunEvent
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.execution.local import LocalExecutor, default_jobs, keeping_workers
from lpsgd.lab.execution.run import run_tasks
from lpsgd.lab.plan import Task
from lpsgd.lab.store.run_files import read_result
from lpsgd.lab.training.options import RunOptions
from tests.lab.small_runs import assert_same_run, small_recipe


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that are started from now on."""
    popen, processes = subprocess.Popen, []

    def note(*arguments: Any, **options: Any) -> Any:
        processes.append(popen(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", note)
    return processes


def kinds_heard(
    folder: Path, seeds: range, *, jobs: int = 2, stop_at: str | None = None
) -> list[str]:
    """Train small runs; return the kinds of events. ``stop_at`` asks to stop when it is heard."""
    tasks = [Task("sgd", small_recipe(seed=k), folder / f"seed-{k}") for k in seeds]
    stop, heard = threading.Event(), []

    def listen(task: Task, event: RunEvent) -> None:
        heard.append(event.kind)
        if event.kind == stop_at:
            stop.set()

    LocalExecutor(jobs, RunOptions()).run(tasks, listen, stop)
    return heard


def test_processes_end_with_their_runs_unless_they_are_kept(
    tmp_path: Path, launched: list[Any]
) -> None:
    kinds_heard(tmp_path / "alone", range(2))
    assert [process.returncode for process in launched] == [0, 0]
    with keeping_workers():
        kinds_heard(tmp_path / "kept", range(2))
        kinds_heard(tmp_path / "kept", range(2, 4))
        assert [process.poll() for process in launched[2:]] == [
            None,
            None,
        ], "two"
    assert [process.returncode for process in launched[2:]] == [0, 0]
    for seed in range(2):
        assert_same_run(tmp_path / "alone" / f"seed-{seed}", tmp_path / "kept" / f"seed-{seed}")
    assert read_result(tmp_path / "kept" / "seed-3") is not None


def test_a_kept_process_that_died_is_replaced(tmp_path: Path, launched: list[Any]) -> None:
    with keeping_workers():
        kinds_heard(tmp_path, range(1), jobs=1)
        os.kill(launched[0].pid, signal.SIGKILL)
        launched[0].wait()
        heard = kinds_heard(tmp_path, range(1, 2), jobs=1)
    assert len(launched) == 2
    assert "warning" not in heard
    assert read_result(tmp_path / "seed-1") is not None


def test_a_process_that_was_told_to_stop_is_not_kept(tmp_path: Path, launched: list[Any]) -> None:
    with keeping_workers():
        assert kinds_heard(tmp_path, range(1), jobs=1, stop_at="assigned")[-1] == "interrupted"
        assert launched[0].returncode == 0
        assert kinds_heard(tmp_path, range(1), jobs=1)[-1] == "end"
    assert len(launched) == 2


def test_the_number_of_runs_at_once_is_known_where_a_process_has_no_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    task = Task("sgd", small_recipe(threads=2, device="cpu"), Path("runs"))
    assert default_jobs(task) == 3


def test_freed_memory_is_kept_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, given = subprocess.Popen, []

    def note(*arguments: Any, **options: Any) -> Any:
        given.append(options["env"])
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", note)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    kinds_heard(tmp_path, range(1), jobs=1)
    assert int(given[0]["MALLOC_TRIM_THRESHOLD_"]) > 2**30
    assert given[0]["MALLOC_MMAP_THRESHOLD_"] == "65536"


@pytest.mark.parametrize("text", ["{}", "[]", '{"state": "complete"}'])
def test_a_result_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(LabError, match=r"result\.json is not the result of a run.*Remove it"):
        read_result(tmp_path)


def test_a_run_for_which_no_process_can_be_started_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    tasks = [Task("sgd", small_recipe(seed=k), tmp_path / f"seed-{k}") for k in range(3)]
    failures = run_tasks(tasks, ExecutorChoice(jobs=2), RunOptions())
    text = "no process could be started for it: Cannot allocate memory"
    assert sorted(failures) == [f"sgd seed {k}: {text}" for k in range(3)]


def test_a_process_that_is_killed_in_the_middle_of_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = 'printf \'{"kind": "war\'; kill -KILL $$'
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda _, **options: popen(["sh", "-c", half], **options)
    )
    task = Task("sgd", small_recipe(), tmp_path / "run")
    (failure,) = run_tasks([task], ExecutorChoice(jobs=1), RunOptions())
    assert failure == "sgd seed 0: the process that trained it was killed by SIGKILL"
