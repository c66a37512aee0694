"""Norms of tensors that are sharded over several processes (DTensor, FSDP2).

A part is a plain tensor, on which operations cost what they cost anywhere; only what is a number
for the whole tensor, such as its largest entry, needs the other processes. Parts may be of
different sizes, and empty where a tensor has fewer rows than there are processes.

Nothing here imports ``torch.distributed.tensor``, which is slow: who has a DTensor has done so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lpsgd._compat import replicated

# Other classes, such as DTensor, do not do everything that these do.
PLAIN = (torch.nn.Parameter, Tensor)


def are_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether none is of a class of its own, such as DTensor, whose memory is not what it seems."""
    return all(type(tensor) in PLAIN for tensor in tensors)


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor, of which this process has a part (or, replicated, a copy)."""
    return type(tensor) not in PLAIN and hasattr(tensor, "to_local")


def local_part(tensor: Any, like: Any = None) -> Tensor:
    """This process's part, in the memory of the tensor itself; what is not sharded as it is.

    ``like``: sharded as that one is, which moves data if ``tensor`` was sharded otherwise.
    """
    if not is_sharded(tensor):
        own: Tensor = tensor
        return own
    if like is not None and tensor.placements != like.placements:
        tensor = tensor.redistribute(placements=like.placements)
    part: Tensor = tensor.to_local()
    return part


def unsharded(tensor: Any) -> Tensor:
    """The whole of a DTensor, gathered on every process; a plain tensor as it is."""
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return full


def part_of(whole: Tensor, like: Any) -> Tensor:
    """Of a whole tensor, the part that lies here of ``like``, without a message."""
    whole = whole.view(like.shape)
    return local_part(replicated(whole, like.device_mesh), like) if is_sharded(like) else whole


class Shards:
    """How the tensors of a list are sharded, to complete what was reduced over each local part."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        # (mesh, its dimension) -> which tensors are sharded along it
        self._cuts: dict[tuple[Any, int], list[int]] = {}
        for i, tensor in enumerate(tensors):
            if is_sharded(tensor):
                for dimension, placement in enumerate(tensor.placements):
                    if not placement.is_replicate():
                        self._cuts.setdefault((tensor.device_mesh, dimension), []).append(i)

    def max(self, values: Sequence[Tensor]) -> list[Tensor]:
        """From the largest entry of each local part to that of each tensor."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def sum(self, values: Sequence[Tensor]) -> list[Tensor]:
        """From the sum over each local part to that over each tensor."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def _reduce(self, values: Sequence[Tensor], operation: Any) -> list[Tensor]:
        values = list(values)
        for (mesh, dimension), indices in self._cuts.items():
            together = torch.stack([values[i] for i in indices])  # one message for all of them
            dist.all_reduce(together, operation, group=mesh.get_group(dimension))
            for i, value in zip(indices, together.unbind(), strict=True):
                values[i] = value
        return values


def largest_entry(x: Any) -> Tensor:
    """max|x| over the whole tensor, on every process."""
    if not is_sharded(x):
        largest: Tensor = x.abs().amax()
        return largest
    part = x.to_local()
    here = part.abs().amax() if part.numel() else part.new_zeros(())
    (largest,) = Shards([x]).max([here])
    everywhere: Tensor = replicated(largest, x.device_mesh)
    return everywhere
