r"""The fused update on a GPU (CUDA or ROCm): Triton kernels that step many tensors in one launch.

    m     <- m + (1 - momentum) (g - m)
    theta <- keep theta + step factor m / (|m| + eps)^rho

Where the tensors lie, and the numbers of this step, come to the device as one table of int64 in one
copy. A program works on one block of one tensor, which it finds in the table. ``normalize`` takes
three launches instead of one: partial results of each block, a factor for each tensor, the update.
Arithmetic is float32; bfloat16 momentum is rounded as in ``_rounding.py``, to the same bits.

The only module that imports triton; with TRITON_INTERPRET=1 it runs on a CPU, as its tests do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpsgd._compat import increment_version
from lpsgd._foreach import addresses
from lpsgd.geometry import Normalize

__all__ = ["TYPES", "triton_step"]

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
BLOCK = 1024
WARPS = 4
# The table: four numbers (p, step and keep as the bits of float64; the count), then for each tensor
# the addresses of parameter, gradient and momentum, its size, and the number of its first block.
NUMBERS = 4
FIELDS = 5
_FORMS: dict[Normalize, int] = {None: 0, "rms": 1, "dual": 2}
RMS = tl.constexpr(1)


@triton.jit
def _number(table, index):
    return tl.load(table + index).to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit
def _tensor_of(table, block, tensors, SEARCH: tl.constexpr):
    """The number of the tensor to which a block belongs, by bisection."""
    low = 0
    high = tensors
    for _ in range(SEARCH):
        middle = (low + high) // 2
        first = tl.load(table + 4 + 5 * tl.minimum(middle, tensors - 1) + 4)
        inside = (middle < tensors) & (first <= block)
        low = tl.where(inside, middle, low)
        high = tl.where(inside, high, middle)
    return low


@triton.jit
def _mix(h):
    """The last steps of MurmurHash3, as in _rounding.py."""
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _rounded(value, places, table, tensor, ROLE: tl.constexpr):
    """float32 to bfloat16, stochastically, by the bits of _rounding.round_into."""
    count = tl.load(table + 3)
    key = _mix((count * 0x9E3779B1 + 2 * tensor + ROLE).to(tl.uint32))
    noise = _mix((places * 0x9E3779B1).to(tl.uint32) + key) & 0xFFFF
    bits = (value.to(tl.uint32, bitcast=True) + noise) >> 16
    rounded = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return tl.where(value == value, rounded, value.to(tl.bfloat16))


@triton.jit
def _to_nearest(value, TYPE: tl.constexpr):
    """float32 to a parameter's dtype; to bfloat16 by hand, for the interpreter cuts it off"""
    if tl.bfloat16 == TYPE:
        bits = value.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        near = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
        return tl.where(value == value, near, value.to(tl.bfloat16))
    return value.to(TYPE)


@triton.jit
def _place(fields, role: tl.constexpr, TYPE: tl.constexpr):
    """Where the tensor of this role begins: parameter, gradient, momentum."""
    return tl.load(fields + role).to(tl.pointer_type(TYPE))


@triton.jit
def _direction(x, rho, eps):
    """u = x (|x| + eps)^-rho (the paper's eq:ut)"""
    return x * tl.exp2(-rho * tl.log2(tl.abs(x) + eps))


@triton.jit
def _block(table, block, tensors, BLOCK: tl.constexpr, SEARCH: tl.constexpr):
    """The tensor of a block, where its fields are, and which of its elements the block has."""
    tensor = _tensor_of(table, block, tensors, SEARCH)
    fields = table + 4 + 5 * tensor
    first = tl.load(fields + 4)
    places = (block - first) * BLOCK + tl.arange(0, BLOCK)
    return tensor, fields, places, places < tl.load(fields + 3)


@triton.jit
def _averaged(
    table, tensor, fields, places, mask, weight,
    G: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """x: the gradient, or the momentum after this step, which is also written."""
    g = tl.load(_place(fields, 1, G) + places, mask, 0.0).to(tl.float32)
    if M is not None:
        held = _place(fields, 2, M) + places
        m = tl.load(held, mask, 0.0).to(tl.float32)
        m += weight * (g - m)
        if tl.bfloat16 == M:
            tl.store(held, _rounded(m, places, table, tensor, 0), mask)
        else:
            tl.store(held, m.to(M), mask)
        g = m
    return g


@triton.jit
def _partial_kernel(
    table, tensors, partial, blocks, weight, eps,
    G: tl.constexpr, M: tl.constexpr, FORM: tl.constexpr,
    BLOCK: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """Of each block the largest entry, and the sum of powers of the others relative to it."""
    block = tl.program_id(0)
    _, fields, places, mask = _block(table, block, tensors, BLOCK, SEARCH)
    g = tl.load(_place(fields, 1, G) + places, mask, 0.0).to(tl.float32)
    if M is not None:
        m = tl.load(_place(fields, 2, M) + places, mask, 0.0).to(tl.float32)
        g = m + weight * (g - m)
    alpha = 1.0 / (_number(table, 0) - 1.0)
    exponent = 1.0 + alpha
    if FORM == RMS:
        g = _direction(g, 1.0 - alpha, eps)
        exponent = 2.0
    size = tl.where(mask, tl.abs(g), 0.0)
    largest = tl.max(size, 0)
    share = size / tl.where(largest > 0, largest, 1.0)
    powers = tl.where(share > 0, tl.exp2(exponent * tl.log2(tl.maximum(share, 1.2e-38))), 0.0)
    # what is not a number must stay so, which a maximum may have lost
    total = tl.sum(tl.where(share == share, powers, share), 0)
    tl.store(partial + block, largest)
    tl.store(partial + blocks + block, total)


@triton.jit
def _factor_kernel(
    table, tensors, partial, blocks, factors, eps, FORM: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Of each tensor the two factors that ``normalize`` puts before the direction."""
    tensor = tl.program_id(0)
    fields = table + 4 + 5 * tensor
    size = tl.load(fields + 3)
    first = tl.load(fields + 4)
    last = blocks.to(tl.int64)
    if tensor + 1 < tensors:
        last = tl.load(fields + 9)
    alpha = 1.0 / (_number(table, 0) - 1.0)
    rho = 1.0 - alpha
    exponent = 1.0 + alpha
    if FORM == RMS:
        exponent = 2.0
    largest = 0.0
    start = first
    while start < last:  # not a range of numbers on the device, which older interpreters refuse
        some = start + tl.arange(0, CHUNK)
        largest = tl.maximum(largest, tl.max(tl.load(partial + some, some < last, 0.0), 0))
        start += CHUNK
    safe = tl.where(largest > 0, largest, 1.0)
    total = 0.0
    start = first
    while start < last:
        some = start + tl.arange(0, CHUNK)
        share = tl.load(partial + some, some < last, 0.0) / safe
        weight = tl.exp2(exponent * tl.log2(tl.maximum(share, 1.2e-38)))
        weight = tl.where(share > 0, weight, 0.0)
        total += tl.sum(weight * tl.load(partial + blocks + some, some < last, 0.0), 0)
        start += CHUNK
    before = 1.0
    after = 1.0
    if FORM == RMS:
        rms = largest * tl.sqrt(total / size.to(tl.float32))
        floor = eps * tl.exp2(-rho * tl.log2(2.0 * eps))
        after = 1.0 / tl.where(rms > floor, rms, floor)
        after = tl.where(total == total, after, total)
    else:
        # a large power comes first, halved; a small one last: each product is then in range
        power = tl.exp2(rho * tl.log2(safe))
        rest = tl.exp2(rho / exponent * tl.log2(tl.where(total > 0, total, 1.0)))
        rest = tl.where(total == total, rest, total)
        before = tl.where(safe > 1, power * 0.5, 1.0)
        after = tl.where(safe > 1, 2.0, power) * rest
    tl.store(factors + tensor, before)
    tl.store(factors + tensors + tensor, after)


@triton.jit
def _update_kernel(
    table, tensors, factors, weight, eps,
    P: tl.constexpr, G: tl.constexpr, M: tl.constexpr, STOCHASTIC: tl.constexpr,
    FORM: tl.constexpr, BLOCK: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """m <- m + (1 - momentum) (g - m); theta <- keep theta + step factor u"""
    tensor, fields, places, mask = _block(table, tl.program_id(0), tensors, BLOCK, SEARCH)
    x = _averaged(table, tensor, fields, places, mask, weight, G, M)
    u = _direction(x, 1.0 - 1.0 / (_number(table, 0) - 1.0), eps)
    step = _number(table, 1)
    if FORM != 0:
        u *= tl.load(factors + tensor)
        step *= tl.load(factors + tensors + tensor)
    held = _place(fields, 0, P) + places
    theta = _number(table, 2) * tl.load(held, mask, 0.0).to(tl.float32) + step * u
    if STOCHASTIC:
        tl.store(held, _rounded(theta, places, table, tensor, 1), mask)
    else:
        tl.store(held, _to_nearest(theta, P), mask)


def triton_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor] | None,
    *,
    p: float | Tensor,
    step: float | Tensor,
    keep: float | Tensor,
    momentum: float,
    eps: float,
    normalize: Normalize,
    count: int | Tensor = 0,
) -> None:
    """One step on dense tensors of one device, alike in dtype within each list.

    p, step, keep and count are numbers, or 0-d tensors on the device, which the host never sees.
    """
    device = params[0].device
    places = [
        addresses("parameter", params),
        addresses("gradient", grads),
        addresses("momentum", buffers) if buffers else [0] * len(params),
    ]
    table, blocks = _table(places, [q.numel() for q in params], (p, step, keep, count), device)
    tensors = len(params)
    own = TYPES[params[0].dtype]
    types: dict[str, Any] = {
        "G": TYPES[grads[0].dtype],
        "M": TYPES[buffers[0].dtype] if buffers else None,
    }
    shape = {"BLOCK": BLOCK, "SEARCH": tensors.bit_length(), "num_warps": WARPS}
    form = _FORMS[normalize]
    factors = table  # unless there are any
    if form:
        partial = torch.empty(2 * blocks, dtype=torch.float32, device=device)
        factors = torch.empty(2 * tensors, dtype=torch.float32, device=device)
        numbers = (1 - momentum, eps)
        _partial_kernel[(blocks,)](
            table, tensors, partial, blocks, *numbers, **types, FORM=form, **shape
        )
        _factor_kernel[(tensors,)](
            table, tensors, partial, blocks, factors, eps, FORM=form, CHUNK=1024, num_warps=WARPS
        )
    _update_kernel[(blocks,)](
        table, tensors, factors, 1 - momentum, eps,
        P=own, **types, STOCHASTIC=own == types["M"] == tl.bfloat16, FORM=form, **shape,
    )  # fmt: skip
    increment_version([*params, *(buffers or ())])


def _table(
    places: Sequence[Sequence[int]],
    sizes: Sequence[int],
    numbers: tuple[float | Tensor, float | Tensor, float | Tensor, int | Tensor],
    device: torch.device,
) -> tuple[Tensor, int]:
    """Numbers and places of this step on the device, by one copy; and how many blocks there are."""
    entries = [0] * NUMBERS
    blocks = 0
    for row in zip(*places, sizes, strict=True):
        entries += [*row, blocks]
        blocks += -(-row[3] // BLOCK)
    pinned = device.type == "cuda"
    host = torch.tensor(entries, dtype=torch.int64, device="cpu", pin_memory=pinned)
    known = [0.0 if isinstance(number, Tensor) else float(number) for number in numbers[:3]]
    host[:3] = torch.tensor(known, dtype=torch.float64, device="cpu").view(torch.int64)
    if not isinstance(numbers[3], Tensor):
        host[3] = int(numbers[3])
    table = host.to(device, non_blocking=True)
    if table is host:
        table = host.clone()
    for index, number in enumerate(numbers):
        if isinstance(number, Tensor):  # on the device already
            table[index] = number.to(torch.int64 if index == 3 else torch.float64).view(torch.int64)
    return table, blocks
