"""``torchrun -m lpsgd train`` for real: kills, signals, errors."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.small_runs import assert_same_run, metrics

pytestmark = pytest.mark.slow

SMALL = "--width 8 --train-size 144 --test-size 64 --batch-size 36 --optimizer lpsgdm:lr=1e-2"


def start(processes: int, out: Path, more: str = "", restarts: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    command += ["--monitor-interval", "0.1", "-m", "lpsgd", "train", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *SMALL.split(), *more.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def wait(child: subprocess.Popen[str]) -> str:
    output, _ = child.communicate(timeout=300)
    return output


def workers(child: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun has started, by their ranks."""
    found = {}
    for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [v for v in variables if v.startswith(b"RANK=")]
        if ranks:
            found[int(ranks[0][5:])] = int(pid)
    return [found[rank] for rank in sorted(found)]


def newest(folder: Path) -> str:
    return max((p.name for p in (folder / "checkpoints").glob("step-*")), default="")


def wait_until(child: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert child.poll() is None, wait(child)
        assert time.monotonic() < deadline, "it does not get further"
        time.sleep(0.01)


def wait_for_progress(
    child: subprocess.Popen[str], folder: Path, processes: int, former: list[int]
) -> None:
    """Wait for a checkpoint of workers other than the former, one of which was killed."""
    wait_until(child, lambda: len(set(workers(child)) - set(former)) == processes)
    before = newest(folder)
    wait_until(child, lambda: newest(folder) > before)


@pytest.mark.parametrize(("strategy", "processes"), [("ddp", 3), ("fsdp2", 2)])
def test_killed_workers_change_nothing(tmp_path: Path, strategy: str, processes: int) -> None:
    """Elastic restarts: SIGKILL to one worker, then to another; the same to the last bit."""
    epochs = f"--epochs 8 --strategy {strategy}"
    whole = start(processes, tmp_path / "whole", epochs)
    assert "complete" in wait(whole)
    chance = random.Random(0)
    child = start(processes, tmp_path / "killed", f"{epochs} --save-seconds 0", restarts=3)
    former: list[int] = []
    for victim in (processes - 1, 0):
        wait_for_progress(child, tmp_path / "killed", processes, former)
        time.sleep(chance.uniform(0, 0.3))
        former = workers(child)
        os.kill(former[victim], signal.SIGKILL)
    output = wait(child)
    assert child.returncode == 0, output
    assert output.count("failed (exitcode: -9)") == 2, output
    # each time a survivor says so, unless torchrun ends it before it has noticed
    told = output.count("lost the connection")
    assert told == 2 or told + output.count("closing signal SIGTERM") >= 2, output
    assert "Traceback" not in output
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert [line["epoch"] for line in metrics(tmp_path / "killed")] == list(range(1, 9))
    assert not list((tmp_path / "killed").rglob("*.part"))


@pytest.mark.parametrize("target", ["torchrun", "one worker"])
def test_a_signal_saves_and_ends_all(tmp_path: Path, target: str) -> None:
    child = start(2, tmp_path / "run", "--epochs 10000")
    deadline = time.monotonic() + 120
    while not (tmp_path / "run/metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # torchrun passes a signal on, and a batch system may send one to every process: twice is once
    pids = [child.pid, *workers(child)] if target == "torchrun" else workers(child)[1:]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    output = wait(child)
    assert child.returncode != 0
    assert output.count("the same command resumes from there") == 1, output
    (saved,) = (tmp_path / "run/checkpoints").glob("step-*.dcp")
    assert not (tmp_path / "run/result.json").exists()
    step = int(saved.name.split("-")[1])
    assert re.search(rf"stopped at step {step} ", output)


def test_a_mistake_is_told_once(tmp_path: Path) -> None:
    child = start(2, tmp_path / "run", "--epochs 2 --batch-size 1")
    output = wait(child)
    assert child.returncode != 0
    assert output.count("has no row for each of 2 processes") == 1, output
    assert "exitcode  : 2" in output
    assert not (tmp_path / "run").exists()


def test_a_divergence_is_told_once(tmp_path: Path) -> None:
    child = start(2, tmp_path / "run", "--epochs 2 --optimizer sgd:lr=1e30")
    output = wait(child)
    assert output.count("diverged: the") == 1, output
    assert (tmp_path / "run/result.json").exists()


def test_one_process_speaks(tmp_path: Path) -> None:
    output = wait(start(2, tmp_path / "run", "--epochs 2"))
    assert output.count("epoch 1/2") == 1
    assert output.count("complete; the run is in") == 1
