"""Shared by all tests: one thread, no drift, nothing left behind, and a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Several workers share the cores, and small tensors gain nothing from more threads. Before torch
# is imported, and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Triton reads it when it is imported, which torch may do at any time: its kernels are interpreted.
os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

ROOT = Path(__file__).parents[1]
CACHES = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".coverage")
HELPERS = ("resource_tracker", "multiprocessing.forkserver", "_inductor/compile_worker")
OWNER = "PYTEST_OWNER"  # in the environment of every process that these tests start


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    assert torch.get_default_dtype() == torch.float32, "a test left another default dtype behind"


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail at the end of a worker's tests if one of them left a process or a file."""
    os.environ[OWNER] = str(os.getpid())
    before = _new_files()
    yield
    assert not (files := _new_files() - before), f"tests left these in the checkout: {files}"
    deadline = time.monotonic() + 10  # what was told to end may still be ending
    while (left := _descendants()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"tests left processes behind: {left}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real, headless browser."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("the page tests need the program chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    arguments += ["--disable-component-update", "--disable-sync", "--no-first-run"]
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


def _new_files() -> set[str]:
    """What git does not track in the checkout, but for caches."""
    command = ["git", "status", "--porcelain", "--ignored", "--untracked-files=all"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    entries = (line[3:] for line in shown.splitlines() if line.startswith(("??", "!!")))
    return {entry for entry in entries if not any(cache in entry for cache in CACHES)}


def _descendants() -> dict[str, str]:
    """The processes that tests of this worker started, each with the test that was running."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:  # it has ended, or is somebody else's
            continue
        # these live as long as the process that they help
        helper = any(name in command for name in HELPERS)
        if f"{OWNER}={os.getpid()}" in environment and not helper:
            test = [entry for entry in environment if entry.startswith("PYTEST_CURRENT_TEST=")]
            found[f"{process.name}: {command.strip()}"] = "".join(test)
    return found
