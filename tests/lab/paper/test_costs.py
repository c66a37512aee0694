"""The cost of each target, as the site shows it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from lpsgd.lab.paper.estimate import GPUS, USED

SCRIPT = Path(__file__).parents[3] / "scripts/cost_table.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("cost_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_what_the_estimate_says(script: Any) -> None:
    page = script.find_page().read_text()
    shown = script.between(page)
    assert shown == script.make_table(page, timing=False)
    rows = {line.split("|")[1].strip(" `"): line.split("|")[2:-1] for line in shown.splitlines()}
    runs, flops, hours = (cell.strip() for cell in rows["table3"][:3])
    assert runs == "12"
    expected = float(flops) / (GPUS["A100"] * USED) / 3600
    assert float(hours.removesuffix(" h")) == pytest.approx(expected, rel=0.05)
    assert rows["claims"][0].strip() == "none"
    for target in ("table1", "table2", "table3", "fig1", "fig2", "fig4", "decay"):
        assert all(cell.strip() for cell in rows[target]), target


def test_runs_side_by_side(script: Any) -> None:
    assert script.side_by_side([2.0] * 8) == 2
    assert script.side_by_side([2.0] * 9) == 4, "the ninth waits for a GPU"
    assert script.side_by_side([5.0]) == 5
