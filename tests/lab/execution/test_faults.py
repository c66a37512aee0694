"""Whatever fails inside the executor, every run ends with an event, and the others are trained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lpsgd.lab.events import RunEvent
from lpsgd.lab.execution import local
from lpsgd.lab.execution.local import LocalExecutor, WorkerPool, WorkerProcess
from lpsgd.lab.plan import Task
from lpsgd.lab.training.options import RunOptions
from tests.lab.small_runs import small_recipe


def last_events(folder: Path, seeds: range) -> list[RunEvent]:
    """The last event of each run, in the order of the seeds; one process trains them."""
    tasks = [Task("sgd", small_recipe(seed=k), folder / f"seed-{k}") for k in seeds]
    last: dict[Path, RunEvent] = {}

    def listen(task: Task, event: RunEvent) -> None:
        last[task.folder] = event

    LocalExecutor(1, RunOptions()).run(tasks, listen, threading.Event())
    return [last[task.folder] for task in tasks]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (WorkerPool, "acquire"),
        (WorkerPool, "release"),
        (WorkerProcess, "run_job"),
        (local, "decode_event"),
        (local, "JobSpec"),
    ],
)
def test_an_error_at_any_step_fails_that_run_alone(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = getattr(owner, name), []

    def fails_once(*arguments: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            if name == "release":
                original(*arguments, **settings)  # or the process would be left behind
            raise ZeroDivisionError("injected")
        return original(*arguments, **settings)

    monkeypatch.setattr(owner, name, fails_once)
    events = last_events(tmp_path, range(3))
    assert calls
    failed = [event for event in events if event.kind == "error"]
    assert [event.text for event in failed] == ["ZeroDivisionError: injected"]  # type: ignore[union-attr]
    assert [event.kind for event in events].count("end") == 2


def test_a_signal_without_a_name_is_told_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "RETRIES", 0)
    start = WorkerProcess.__init__

    def start_and_kill(self: WorkerProcess) -> None:
        start(self)
        os.kill(self._process.pid, signal.SIGRTMIN + 6)

    monkeypatch.setattr(WorkerProcess, "__init__", start_and_kill)
    (event,) = last_events(tmp_path, range(1))
    assert event.kind == "error"
    assert f"killed by signal {signal.SIGRTMIN + 6}" in event.text


PLANTED = ("queue.py", "random.py", "json.py", "torch.py", "signal.py")


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "--model", "mlp", "--width", "8", "--epochs", "1", "--seeds", "1"],
        ["data", "list"],
        ["optimizers"],
    ],
    ids=lambda command: command[0],
)
def test_modules_in_the_current_folder_are_not_executed(command: list[str], tmp_path: Path) -> None:
    for name in PLANTED:
        (tmp_path / name).write_text("open('executed', 'a').write(__name__)\n")
    script = Path(sys.executable).with_name("lpsgd")
    if command[0] == "compare":
        command = [*command, "--optimizers", "sgd", "--train-size", "64", "--test-size", "32"]
        command += ["--batch-size", "32", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(Path(local.__file__).parents[3])}
    done = subprocess.run(
        [str(script), *command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def test_the_probe_of_a_precision_does_not_execute_them_either(tmp_path: Path) -> None:
    for name in PLANTED:
        (tmp_path / name).write_text("open('executed', 'a').write(__name__)\n")
    code = "from lpsgd.lab.training import precision; print(precision.probe('bfloat16'))"
    environment = {**os.environ, "PYTHONPATH": str(Path(local.__file__).parents[3])}
    subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert not (tmp_path / "executed").exists()
