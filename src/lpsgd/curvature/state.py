"""Measuring without leaving a trace.

A measurement works on copies of weights and buffers, so those cannot change. What a forward pass
or a data loader does change is put back here: training flags and the states of random generators.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

BatchNormMode = Literal["eval", "batch"]


@contextmanager
def preserved_rng(*owners: object) -> Iterator[None]:
    """Put back every global random state, and the ``generator`` of each owner that has one."""
    generators = [
        generator
        for owner in owners
        if isinstance(generator := getattr(owner, "generator", None), torch.Generator)
    ]
    held = [generator.get_state() for generator in generators]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for generator, state in zip(generators, held, strict=True):
            generator.set_state(state)


@contextmanager
def _training_flags(model: nn.Module, batchnorm: BatchNormMode) -> Iterator[None]:
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            # Set directly: a model may override train() to do more than set flags.
            module.training = batchnorm == "batch" and isinstance(module, _BatchNorm)
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def _slow_attention_path() -> Iterator[None]:
    """The fused attention kernels have no second derivative; the plain formula has."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


@contextmanager
def plain_modes(device: torch.device) -> Iterator[None]:
    """Suspend ambient ``inference_mode`` and ``autocast``, which would reach into products."""
    with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def measuring(model: nn.Module, batchnorm: BatchNormMode, device: torch.device) -> Iterator[None]:
    """Evaluate ``model`` as a smooth deterministic function, then leave it as it was.

    Dropout is off. Batch norm uses its running statistics (``"eval"``) or those of the batch
    (``"batch"``). Ambient ``no_grad``, ``inference_mode`` and ``autocast`` are suspended.
    """
    with (
        preserved_rng(),
        _training_flags(model, batchnorm),
        plain_modes(device),
        torch.enable_grad(),
        _slow_attention_path(),
    ):
        yield
