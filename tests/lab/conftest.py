"""Shared by the tests of the laboratory: the command that is recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _called_as_a_user_would() -> Iterator[None]:
    """What plans record of the command line, however pytest and its workers were started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lpsgd", "command"])
        yield
