"""The examples in docs/curvature.md and in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import lpsgd.curvature

MODULES = [module.name for module in pkgutil.iter_modules(lpsgd.curvature.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(f"lpsgd.curvature.{name}")
    assert doctest.testmod(module).failed == 0


def test_the_page_runs_from_top_to_bottom():
    page = Path(__file__).parents[2] / "docs" / "curvature.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 8
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert [record["epoch"] for record in names["records"]] == [0, 2, 4]
