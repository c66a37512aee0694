"""Which torch a test needs, where the oldest that lpsgd takes lacks what is tested."""

from __future__ import annotations

import pytest

from lpsgd._compat import TORCH


def needs_torch(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skip a test on an older torch, and say why."""
    return pytest.mark.skipif((major, minor) > TORCH, reason=f"needs torch {major}.{minor}: {why}")


FSDP2_ON_A_CPU = (2, 7)  # before, it asks for streams of a GPU
needs_fsdp2_on_a_cpu = needs_torch(*FSDP2_ON_A_CPU, "FSDP2 on a CPU")
needs_compiled_step = needs_torch(2, 6, "torch.compile of an optimizer's step")
