"""Batches of any form: tensors in tuples, lists and mappings, as collate functions give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lpsgd.lab.errors import UserError


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with everything that can be moved on ``device``."""
    return tree_map(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, batch)


def _tensors(batch: Any) -> list[Tensor]:
    plain = dict(batch) if hasattr(batch, "keys") else batch  # a Mapping that is no dict
    return [leaf for leaf in tree_leaves(plain) if isinstance(leaf, Tensor)]


def count_rows(batch: Any) -> int:
    """How many rows the batch has: the length of its first tensor; 1 if it has none.

    >>> count_rows({"ids": torch.zeros(3, 5), "labels": torch.zeros(3)})
    3
    """
    return next((len(tensor) for tensor in _tensors(batch) if tensor.ndim), 1)


def split_rows(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """The batch in parts of so many rows.

    >>> [part[0].tolist() for part in split_rows((torch.arange(3), torch.ones(3)), [2, 1])]
    [[0, 1], [2]]
    """
    rows, parts, start = count_rows(batch), [], 0
    for size in sizes:
        part = slice(start, start + size)

        def cut(leaf: Any, part: slice = part) -> Any:
            if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == rows:
                return leaf[part]
            raise UserError(
                f"accumulate={len(sizes)} divides a batch by its rows, and a "
                f"{type(leaf).__name__} in it cannot be divided; use accumulate=1"
            )

        parts.append(tree_map(cut, dict(batch) if hasattr(batch, "keys") else batch))
        start += size
    return parts
