"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "choices",
        "document",
        "flops",
        "gather",
        "grid",
        "theory.constants",
        "theory.descent",
        "theory.problems",
    ],
)
def test_documented_examples_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"lpsgd.lab.paper.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
