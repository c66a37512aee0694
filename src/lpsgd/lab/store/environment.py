"""What a run ran on: versions, commit, processor, threads. Never environment variables."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("lpsgd", "torch", "numpy", "scipy", "scikit-learn", "pillow", "pytorch_optimizer")


def describe_environment(threads: int, device: str) -> dict[str, Any]:
    """Return a JSON-able description of the software and hardware that runs now."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": git_commit(Path(__file__).parent),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus,
        "device": device,
        "threads": threads,
    }


def git_commit(folder: Path) -> str | None:
    """Return the commit of the repository around ``folder``, with ``-dirty`` if it is changed."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        found = subprocess.run(
            [*command, "--exclude", "*"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
