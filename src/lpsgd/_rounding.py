r"""Stochastic rounding to bfloat16, by noise that is a pure function of place and time.

A value x between two neighbours a < b of bfloat16 becomes b with probability (x - a)/(b - a), so
that E[round(x)] = x: changes far below the spacing of bfloat16 are right on average, where rounding
to nearest loses every one of them.

The noise is sixteen bits of a hash of (step count, tensor, element), added below the last bit that
is kept. There is no generator whose state would have to be saved: a resumed run rounds as the
uninterrupted one, and fused.c computes the same bits.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

Whole = TypeVar("Whole", int, Tensor)

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B1  # 2^32 over the golden ratio: neighbouring numbers get far apart

MOMENTUM, PARAMETER = 0, 1  # what is rounded: both have noise of their own


def _mix(h: Whole) -> Whole:
    """The last steps of MurmurHash3, on the low 32 bits of a number or of int64 tensors."""
    h = h & _MASK
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def noise_key(count: int | Tensor, number: int, role: int) -> int | Tensor:
    """What the noise of tensor ``number`` depends on at step ``count`` besides the element."""
    if isinstance(count, Tensor):
        return _mix(count.to(torch.int64) * _GOLDEN + (2 * number + role))
    return _mix(int(count) * _GOLDEN + 2 * number + role)


def noise_bits(first: int, end: int, key: int | Tensor, device: torch.device) -> Tensor:
    """Sixteen bits of noise, as int64, for the elements from ``first`` to before ``end``."""
    places = torch.arange(first, end, device=device)
    return _mix(places * _GOLDEN + key) & 0xFFFF


def round_into(target: Tensor, value: Tensor, key: int | Tensor, first: int = 0) -> None:
    """target <- value, rounded stochastically; ``first`` is the number of the first element.

    >>> target = torch.empty(10_000, dtype=torch.bfloat16)
    >>> round_into(target, torch.full((10_000,), 1.001), key=1)
    >>> target.unique()  # the two neighbours
    tensor([1.0000, 1.0078], dtype=torch.bfloat16)
    >>> print(f"{target.double().mean():.3f}")
    1.001
    """
    if hasattr(target, "to_local"):  # a DTensor: each process rounds its own part
        target, value = target.to_local(), value.to_local()  # type: ignore[attr-defined]
    value = value.float()
    noise = noise_bits(first, first + value.numel(), key, value.device).view(value.shape)
    bits = value.contiguous().view(torch.int32) + noise.to(torch.int32)
    rounded = (bits >> 16).to(torch.int16).view(torch.bfloat16)
    # in the bits of a NaN the noise could run over into the sign
    target.copy_(torch.where(value.isnan(), value.bfloat16(), rounded))
