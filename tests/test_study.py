"""The study's plan is fair, and its command does what the plan says."""

from __future__ import annotations

import csv
import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SMALL = """
trials = 2
seeds = 2
[competitors]
AdamW = { optimizer = "adamw", lr = 1e-3 }
LPMuon = { optimizer = "lpmuon", lr = 5e-3 }
[tasks.digits]
metric = "top1"
dataset = "digits"
train_size = 64
val_size = 32
test_size = 32
model = "mlp"
width = 8
epochs = 1
batch_size = 32
[tasks.longer]
like = "digits"
lr_scale = 0.5
epochs = 2
"""


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("study")


def test_everyone_gets_as_many_trials_as_the_plan_says(study: Any) -> None:
    plan = study.read_plan()
    assert set(plan["tasks"]) >= {"convnet", "convnet-batch-64", "gpt", "digits", "resnet18"}
    text = (ROOT / "docs/study.md").read_text()
    for task in plan["tasks"].values():
        rates = {label: table["lr"] for label, table in study.space(plan, task).items()}
        assert {len(each) for each in rates.values()} == {plan["trials"]} == {7}
        for each in rates.values():
            assert [b / a for a, b in itertools.pairwise(each)] == [2.0] * 6
    assert f"{plan['seeds']} fresh seeds".replace("10", "ten") in text


def test_search_then_fresh_seeds(study: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(SMALL)
    asked = ["--plan", "plan.toml", "--out", "runs", "--results", "results", "--jobs", "1"]
    asked = [str(tmp_path / a) if a in ("plan.toml", "runs", "results") else a for a in asked]
    for _ in range(2):  # again: nothing is trained or kept twice
        study.main(asked)
        with (tmp_path / "results/trials.csv").open() as file:
            trials = list(csv.DictReader(file))
        with (tmp_path / "results/epochs.csv").open() as file:
            epochs = list(csv.DictReader(file))
        assert len(trials) == 2 * 2 * 2
        assert len(epochs) == 2 * 2 * (1 + 2)
    assert {row["lr"] for row in trials if row["task"] == "longer"} == {
        *("0.0005", "0.001", "0.0025", "0.005")
    }
    assert {row["seed"] for row in epochs} == {"0", "1"}
    assert all(float(row["test_top1"]) >= 0 for row in epochs)
