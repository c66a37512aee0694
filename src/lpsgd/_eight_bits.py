r"""Momentum in 8 bits: blockwise dynamic quantisation with stochastic rounding.

Each block of 256 neighbouring elements has one float32 scale; an element is the number, from -127
to 127, of an entry of a fixed table times that scale. The table is that of Dettmers et al.
(8-bit Optimizers via Block-wise Quantization, 2022): seven decades, of which the highest has 64
entries and each lower one half as many, since the power in the step keeps small entries important.

Which of its two neighbours a value becomes is drawn as in ``_rounding.py``, so that the mean is
right where rounding to nearest would lose every small change.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lpsgd._rounding import noise_bits
from lpsgd.schedule import exponent_dtype

BLOCK = 256
"""Elements that share a scale"""

SMALLEST = 4096
"""Tensors with fewer elements stay in float32: scales of norms and biases cost nothing"""

_DECADES = 7
# Elements that are coded at a time, so that temporaries (60 bytes for each) stay small; a GPU would
# wait for many small launches.
_CPU_PIECE, _PIECE = 1 << 14, 1 << 20


def table(device: torch.device) -> Tensor:
    """The values of the codes -127 to 127 in order, from -1 to 1.

    Computed where they are used: a copy from the host would wait, and cannot be captured.
    """
    last = 2**_DECADES - 1
    code = torch.arange(-last, last + 1, dtype=exponent_dtype(device), device=device)
    size = code.abs().clamp(min=1)
    decade = (size + 0.5).log2().floor()  # of which the entries 2^decade, ... are
    entries = 2**decade
    value = (0.1 + 0.9 * (size - entries + 0.5) / entries) * 10 ** (decade - (_DECADES - 1))
    return (code.sign() * value / value[-1]).float()


def new_scales(elements: int, device: torch.device) -> Tensor:
    """Scales of zero for so many elements; none where they are too few to be coded."""
    blocks = -(-elements // BLOCK) if elements >= SMALLEST else 0
    return torch.zeros(blocks, dtype=torch.float32, device=device)


def decoded(codes: Tensor, scales: Tensor, entries: Tensor) -> Tensor:
    """The values, as a new float32 tensor laid out like ``codes``; ``entries`` is the table."""
    out = torch.empty(codes.numel(), dtype=torch.float32, device=codes.device)
    flat = codes.reshape(-1)
    for start, end in _pieces(flat):
        found = entries[flat[start:end].int() + len(entries) // 2]
        torch.mul(found, _spread(scales, start, end), out=out[start:end])
    shaped = out.view(codes.shape)
    return (
        shaped if codes.is_contiguous() else torch.empty_like(codes, dtype=out.dtype).copy_(shaped)
    )


def encode_into(
    codes: Tensor, scales: Tensor, values: Tensor, key: int | Tensor, entries: Tensor
) -> None:
    """codes, scales <- values; ``key`` is what the noise depends on besides the element."""
    flat = values.reshape(-1)
    target = codes.view(-1) if codes.is_contiguous() else torch.empty_like(flat, dtype=codes.dtype)
    for start, end in _pieces(flat):
        some = flat[start:end]
        blocks = torch.nn.functional.pad(some.abs(), (0, -len(some) % BLOCK)).view(-1, BLOCK)
        largest = blocks.amax(dim=1)
        scales[start // BLOCK : start // BLOCK + len(largest)] = largest
        share = some / _spread(torch.where(largest > 0, largest, 1.0), 0, len(some))
        above = torch.bucketize(share, entries).clamp_(1, len(entries) - 1)
        low = entries[above - 1]
        chance = (share - low) / (entries[above] - low)
        # between two neighbours the upper one as often as the value is near to it
        up = chance > (noise_bits(start, end, key, codes.device) + 0.5) / 65536
        target[start:end] = (above - 1 + up.long() - len(entries) // 2).to(codes.dtype)
    if not codes.is_contiguous():
        codes.copy_(target.view(codes.shape))


def _pieces(flat: Tensor) -> Iterator[tuple[int, int]]:
    size = _CPU_PIECE if flat.is_cpu else _PIECE
    for start in range(0, len(flat), size):
        yield start, min(start + size, len(flat))


def _spread(scales: Tensor, start: int, end: int) -> Tensor:
    """The scale of each element of a piece that starts with a block."""
    some = scales[start // BLOCK : -(-end // BLOCK)]
    return some.repeat_interleave(BLOCK, output_size=len(some) * BLOCK)[: end - start]
