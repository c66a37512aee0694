"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "paper.choices",
        "paper.flops",
        "paper.grid",
        "paper.theory.constants",
        "paper.theory.descent",
        "paper.theory.problems",
        "report.document",
        "report.gather",
        "report.html",
    ],
)
def test_documented_examples_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"lpsgd.lab.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
