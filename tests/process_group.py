"""Run a function in several processes that can talk to each other by gloo."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from lpsgd._compat import TORCH


def in_processes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``function(*arguments)`` in each of ``size`` processes; return what each returned.

    The function must be importable by name. It finds a process group and runs on one thread.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_work, (size, folder, function, arguments), nprocs=size)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _work(
    rank: int, size: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size
    )
    try:
        torch.save(function(*arguments), Path(folder) / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def distributed_tensor() -> ModuleType:
    """The module of DTensor, which is slow to import."""
    return importlib.import_module(f"torch.distributed.{'_' * (TORCH < (2, 5))}tensor")


def fully_shard(model: Any, **settings: Any) -> Any:
    """FSDP2, wherever this torch keeps it; before 2.6 as a prototype that returns nothing."""
    if TORCH < (2, 6):
        from torch.distributed._composable.fsdp import fully_shard as shard
    else:
        from torch.distributed.fsdp import fully_shard as shard
    shard(model, **settings)
    return model
