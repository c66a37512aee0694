"""What a run ran on: versions, commit, processor, threads. Never environment variables."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.disk.jsonio import read_model, write_json

_FILE = "environment.json"
_PACKAGES = ("lpsgd", "torch", "numpy", "scipy", "scikit-learn", "pillow", "pytorch_optimizer")


class Environment(BaseModel):
    """What environment.json holds; one that another version wrote may have other fields."""

    model_config = ConfigDict(extra="allow")

    python: str | None = None
    packages: dict[str, str | None] = {}
    commit: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cpu_capability: str | None = None
    gpus: list[str] = []
    device: str | None = None
    threads: int | None = None
    processes: int | None = None
    strategy: str | None = None
    earlier: list[dict[str, Any]] = []
    """Those before it, of a run that was moved or upgraded meanwhile."""

    def to_json(self) -> dict[str, Any]:
        """What was said of this environment, and no more."""
        return self.model_dump(exclude_unset=True)


def describe_environment(threads: int, device: str, **more: Any) -> Environment:
    """Describe the software and hardware that runs now; ``more`` says how the run uses them."""
    import torch

    return Environment(
        python=sys.version.split()[0],
        packages={name: _version(name) for name in _PACKAGES},
        commit=git_commit(Path(__file__).parent),
        platform=platform.platform(),
        cpu=_cpu_name(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        gpus=[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        device=device,
        threads=threads,
        **more,
    )


def read_environment(folder: Path) -> Environment | None:
    """Return what the run in ``folder`` ran on, or None if it has not begun."""
    return read_model(folder / _FILE, Environment)


def write_environment(folder: Path, environment: Environment) -> None:
    """Record what the run in ``folder`` runs on, beside what it ran on before if that differs."""
    earlier: list[dict[str, Any]] = []
    with suppress(UserError):  # a damaged one is forgotten
        if (known := read_environment(folder)) is not None:
            before = known.to_json()
            earlier = before.pop("earlier", [])
            if before != environment.to_json():
                earlier = [*earlier, before]
    added = {"earlier": earlier} if earlier else {}
    write_json(folder / _FILE, {**environment.to_json(), **added})


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
