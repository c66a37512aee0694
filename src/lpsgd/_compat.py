"""Where versions of torch differ; what is below a version can go when that is the oldest taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


# Of the triton that comes with it: 3.3, the oldest by which our kernels were compiled.
TRITON = TORCH >= (2, 7)


def check_graph_capture(optimizer: Any) -> None:
    """Warn where a graph is captured without ``capturable``."""
    if TORCH < (2, 11):
        optimizer._cuda_graph_capture_health_check()
    else:
        optimizer._accelerator_graph_capture_health_check()


def increment_version(tensors: Sequence[Tensor]) -> None:
    """Tell autograd that these were written behind its back."""
    if TORCH < (2, 5):
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)
    else:
        torch.autograd.graph.increment_version(tensors)


def replicated(whole: Tensor, mesh: Any) -> Any:
    """A DTensor of which every process has this copy."""
    if TORCH < (2, 5):
        from torch.distributed._tensor import DTensor, Replicate  # type: ignore[attr-defined]
    else:
        from torch.distributed.tensor import DTensor, Replicate
    return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
