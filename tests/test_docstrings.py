"""The examples in docstrings are true, in every module of the package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import lpsgd

JAX = ("lpsgd.optax", "lpsgd._optax_muon", "lpsgd._jax")
"""Tested in tests/integrations: its threads do not survive the forks of other tests."""
FOUND = ["lpsgd", *(m.name for m in pkgutil.walk_packages(lpsgd.__path__, "lpsgd."))]
# the first of the others starts the command line, the second is a library of C
MODULES = [name for name in FOUND if name not in (*JAX, "lpsgd.__main__", "lpsgd._fused")]
NEEDS = {
    "lpsgd._triton": "triton",
    "lpsgd.lab.execution.ray": "ray",
    "lpsgd.lab.log.mlflow": "mlflow",
    "lpsgd.lab.log.wandb": "wandb",
}
"""The package that a module imports and that only an extra installs."""


@pytest.mark.parametrize("name", MODULES)
def test_documented_examples_are_true(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    """Public names come with examples, and a walk that finds no module would pass in silence."""
    assert len(MODULES) > 150
    finder = doctest.DocTestFinder()
    for name in ("lpsgd.optimizer", "lpsgd.schedule", "lpsgd.geometry", "lpsgd.groups"):
        found = finder.find(importlib.import_module(name))
        assert any(case.examples for case in found), name
