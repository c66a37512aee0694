"""The examples in docstrings are true, in every module of the package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import lpsgd

OPTIONAL = {"lpsgd.optax": "jax", "lpsgd._optax_muon": "jax", "lpsgd.lab.execution.ray": "ray"}
"""Modules whose extra may be absent."""
MODULES = ["lpsgd", *(m.name for m in pkgutil.walk_packages(lpsgd.__path__, "lpsgd."))]


@pytest.mark.parametrize("name", MODULES)
def test_documented_examples_are_true(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    if name in ("lpsgd.__main__", "lpsgd._fused"):  # starts the command line; a library of C
        return
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    """Public names come with examples, and a walk that finds no module would pass in silence."""
    assert len(MODULES) > 150
    finder = doctest.DocTestFinder()
    for name in ("lpsgd.optimizer", "lpsgd.schedule", "lpsgd.geometry", "lpsgd.groups"):
        found = finder.find(importlib.import_module(name))
        assert any(case.examples for case in found), name
