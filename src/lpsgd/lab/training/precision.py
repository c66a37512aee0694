"""fp32, bf16 and fp16 training, and whether this processor survives them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from contextlib import AbstractContextManager
from functools import cache

import torch

from lpsgd.lab.errors import UserError
from lpsgd.lab.formatting import signal_name

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

# The layers of the networks here, forward and backward, at sizes for which the matrix instructions
# are chosen: small ones may take another path and survive.
_PROBE = """
import sys, torch
from torch import nn
dtype = getattr(torch, sys.argv[1])
layers = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 128, 1, stride=2),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(2048, 256), nn.Linear(256, 10),
)
for memory_format in (torch.contiguous_format, torch.channels_last):
    images = torch.randn(16, 3, 32, 32).to(memory_format=memory_format)
    with torch.autocast("cpu", dtype):
        loss = layers.to(memory_format=memory_format)(images).float().square().mean()
    loss.backward()
"""


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which the network runs."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, _DTYPES[precision])


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return fp16's loss scaler; for the other precisions it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def require(precision: str, device: torch.device) -> None:
    """Raise UserError if the processor cannot compute in ``precision``.

    Some virtual machines advertise instructions that then kill the process, which no exception
    handler sees; so a child process tries first.
    """
    if precision == "fp32" or device.type != "cpu":
        return
    problem = probe(str(_DTYPES[precision]).removeprefix("torch."))
    if problem:
        raise UserError(
            f"--precision {precision} does not work on this processor: {problem}. "
            "Use --precision fp32, or set the environment variable "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 (a lower instruction set that does the same in "
            "software or older instructions) before starting lpsgd"
        )


@cache
def probe(dtype: str) -> str | None:
    """Return what goes wrong in a training step in ``dtype`` on this CPU, or None."""
    command = [sys.executable, "-P", "-c", _PROBE, dtype]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode == 0:
        return None
    if child.returncode < 0:
        return f"a child process that tried was killed by {signal_name(-child.returncode)}"
    return child.stderr.strip().splitlines()[-1] if child.stderr.strip() else "it failed"
