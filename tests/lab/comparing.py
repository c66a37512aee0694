"""Small comparisons for the tests of the laboratory, and what is needed to disturb them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lpsgd.lab.cli import app as cli

SMALL_FLAGS = ["--epochs", "2", "--width", "8", "--train-size", "128", "--test-size", "64"]
SMALL_FLAGS += ["--batch-size", "32"]
SMALL_VALUES = {"epochs": 2, "width": 8, "train_size": 128, "test_size": 64, "batch_size": 32}


def run_compare(out: Path, optimizers: str, *more: str) -> int:
    """The exit code of a small ``lpsgd compare``."""
    return cli.main(["compare", *SMALL_FLAGS, "--optimizers", optimizers, "--out", str(out), *more])


def kill_own_process(model: Any) -> Any:
    """An optimizer that kills the process that makes it."""
    os.kill(os.getpid(), signal.SIGKILL)


def processes_holding(out: Path) -> list[int]:
    """The processes that hold a run's folder open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(link.startswith(str(out)) for link in links):
            found.append(int(process.name))
    return found


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
