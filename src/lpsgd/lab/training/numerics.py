"""What decides a run's rounding and draws beside its recipe: device, threads, generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lpsgd.lab.errors import UserError
from lpsgd.lab.recipe import Recipe


def seed_all(seed: int) -> None:
    """Seed every global generator that a model or an optimizer may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """Return the state of the global generators as tensors and plain values."""
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).copy()), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put the global generators back to what `rng_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy(), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def numerics(recipe: Recipe) -> Iterator[torch.device]:
    """Choose device, threads and deterministic kernels for a run, and put them back afterwards."""
    device = choose_device(recipe.device)
    threads, deterministic = torch.get_num_threads(), torch.backends.cudnn.deterministic
    torch.set_num_threads(recipe.threads)
    torch.backends.cudnn.deterministic = True
    try:
        yield device
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = deterministic


def choose_device(name: str) -> torch.device:
    """Return the device of a recipe; ``auto`` takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "meta":  # shapes without numbers: nothing to train
            raise RuntimeError
    except RuntimeError:
        raise UserError(f"device={name!r} is not a device: write cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={name!r}: this machine has no GPU that torch can use")
    return device
