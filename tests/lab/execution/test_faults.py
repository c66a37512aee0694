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


# of the standard library, installed ones, and some that libraries use if they are installed
PLANTED = "queue random json torch signal tensorflow pandas IPython cupy triton polars opt_einsum"
SMALL = "--model mlp --width 8 --epochs 1 --train-size 64 --test-size 32 --batch-size 32 --out out"


def plant(folder: Path) -> None:
    for name in PLANTED.split():
        (folder / f"{name}.py").write_text("open('executed', 'a').write(__name__)\n")


@pytest.mark.parametrize(
    "command",
    [
        f"compare --seeds 1 --optimizers sgd {SMALL}",
        pytest.param(f"train {SMALL}", marks=pytest.mark.slow),
        pytest.param(f"sweep --space space.toml --jobs 1 {SMALL}", marks=pytest.mark.slow),
        pytest.param("bench imports --rounds 1", marks=pytest.mark.slow),
        "data list",
        "optimizers",
    ],
    ids=lambda command: command.split()[0],
)
def test_modules_in_the_current_folder_are_not_executed(command: str, tmp_path: Path) -> None:
    plant(tmp_path)
    (tmp_path / "space.toml").write_text("[sgd]\nlr = [0.1, 0.2]\n")
    script = Path(sys.executable).with_name("lpsgd")
    environment = {**os.environ, "PYTHONPATH": str(Path(local.__file__).parents[3])}
    done = subprocess.run(
        [str(script), *command.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()


@pytest.mark.slow
def test_a_module_in_the_current_folder_is_found_if_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from torch.optim import SGD as Mine\n")
    script = Path(sys.executable).with_name("lpsgd")
    environment = {**os.environ, "PYTHONPATH": str(Path(local.__file__).parents[3])}
    command = f"train --optimizer mine:Mine:lr=0.1 {SMALL}"
    subprocess.run([str(script), *command.split()], cwd=tmp_path, env=environment, check=True)


def test_the_probe_of_a_precision_does_not_execute_them_either(tmp_path: Path) -> None:
    plant(tmp_path)
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
