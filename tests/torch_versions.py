"""Which torch a test needs, where the oldest that lpsgd takes lacks what is tested."""

from __future__ import annotations

import pytest

from lpsgd._compat import TORCH


def needs_torch(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skip a test on an older torch, and say why."""
    return pytest.mark.skipif((major, minor) > TORCH, reason=f"needs torch {major}.{minor}: {why}")
