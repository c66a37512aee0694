"""The small files of a run: config.json, environment.json, result.json and error.json."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

import lpsgd
from lpsgd.lab.errors import UserError
from lpsgd.lab.recipe import Recipe, to_json
from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.store.disk.jsonio import explain, read_json, read_object, write_json

ERROR_FILE = "error.json"
_PACKAGES = ("lpsgd", "torch", "numpy", "scipy", "scikit-learn", "pillow", "pytorch_optimizer")

# ---------------------------------------------------------------------- config.json


class OptimizerConfig(BaseModel):
    """An optimizer's name in the registry, and its settings."""

    name: str
    settings: dict[str, Any] = {}


class RunConfig(BaseModel):
    """What a run trains; an earlier version may have written less."""

    model_config = ConfigDict(frozen=True, extra="allow")

    version: int = 1
    label: str | None = None
    optimizer: OptimizerConfig
    dataset: str | None = None
    model: str | None = None
    width: int | None = None
    seed: int = 0
    epochs: int | None = None
    batch_size: int | None = None
    precision: str | None = None
    threads: int | None = None
    recipe: dict[str, Any] = {}

    @classmethod
    def of(cls, recipe: Recipe, label: str) -> RunConfig:
        """The config of a run that is to be trained."""
        values = to_json(recipe)
        optimizer = OptimizerConfig(name=values["optimizer"], settings=values["settings"])
        shown = {name: values[name] for name in cls.model_fields if name in values}
        return cls(**{**shown, "label": label, "optimizer": optimizer, "recipe": values})


def is_run(folder: Path) -> bool:
    """Tell whether ``config.json`` in ``folder`` is a run's and not another program's."""
    try:
        found = read_object(folder / "config.json") or {}
    except UserError:
        return True  # it cannot be read, which whoever reads the run will be told
    return isinstance(found.get("optimizer"), dict)


# ---------------------------------------------------------------------- result.json, error.json


RunState = Literal["complete", "diverged", "paused"]


class RunResult(BaseModel):
    """How a run ended, or that it paused; of a run that diverged, where."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    state: RunState
    epochs: int
    reason: str | None = None
    step: int | None = None
    lr: float | None = None
    p: float | None = None
    grad_norm: float | None = None
    state_bytes: int | None = None
    parameters: int | None = None


def write_result(folder: Path, result: RunResult) -> None:
    """Record how the run in ``folder`` ended."""
    with writing(folder):
        write_json(folder / "result.json", result.model_dump())


def read_result(folder: Path) -> RunResult | None:
    """Return how the run in ``folder`` ended, or None while it has not."""
    path = folder / "result.json"
    try:
        return RunResult.model_validate(read_json(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise UserError(
            f"{path} is not the result of a run that lpsgd {lpsgd.__version__} knows "
            f"({explain(error)}). Remove it, and the run resumes from its last checkpoint"
        ) from None


def write_error(folder: Path, text: str) -> None:
    """Record why the run in ``folder`` failed."""
    with suppress(OSError):  # a disk that is full is what it may be about
        write_json(folder / ERROR_FILE, {"version": 1, "text": text})


def read_error(folder: Path) -> str | None:
    """Return why the run in ``folder`` failed the last time, or None if it did not."""
    try:
        found = read_object(folder / ERROR_FILE)
    except UserError as error:
        return str(error)
    return None if found is None else str(found.get("text"))


# ---------------------------------------------------------------------- environment.json


def describe_environment(threads: int, device: str) -> dict[str, Any]:
    """Versions, commit, processor and threads of what runs now; never environment variables."""
    import torch

    return {
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": git_commit(Path(__file__).parent),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "device": device,
        "threads": threads,
    }


def write_environment(folder: Path, environment: dict[str, Any]) -> None:
    """Record what the run in ``folder`` runs on, beside what it ran on before if that differs."""
    path, earlier = folder / "environment.json", []
    with suppress(UserError):  # a damaged one is forgotten
        if (before := read_object(path)) is not None:
            earlier = before.pop("earlier", [])
            if before != environment:
                earlier = [*earlier, before]
    added = {"earlier": earlier} if earlier else {}
    write_json(path, {**environment, **added})


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
