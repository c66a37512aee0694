"""Random numbers that are a pure function of what they are for."""

from __future__ import annotations

import hashlib

import torch


def derive(*parts: int | str) -> int:
    """A 64-bit seed from the parts that name a use, e.g. ``derive(seed, "order", epoch)``.

    A hash, not a sum: neighbouring seeds and epochs must not share streams.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded by :func:`derive`; on the CPU so that a GPU run draws the same."""
    return torch.Generator().manual_seed(derive(*parts))
