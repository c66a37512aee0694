"""Shared by all tests: one thread, because small tensors gain nothing from more, and no drift."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    assert torch.get_default_dtype() == torch.float32, "a test left another default dtype behind"
