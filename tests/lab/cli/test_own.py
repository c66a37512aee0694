"""A model and data by import path, on every command that takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lpsgd.lab.cli import app as cli

MODULE = """
import torch
from torch import nn

def net():
    return nn.Linear(8, 2)

def data(seed):
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return (x[:96], y[:96]), (x[96:], y[96:])

def dictionary():
    train, test = data(0)
    return {"train": train, "test": test, "loss": nn.functional.cross_entropy}

def wrong():
    return {"tran": 1}
"""
SMALL = ["--epochs", "1", "--batch-size", "32", "--model", "own_problem:net"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_problem.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_search_compare_train_and_measure(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [*SMALL, "--dataset", "own_problem:data"]
    Path("space.toml").write_text("[sgd]\nlr = [1e-6, 0.1]\n")
    assert cli.main(["sweep", "--space", "space.toml", *own, "--jobs", "1", "--out", "search"]) == 0
    assert "--allow-import" in capsys.readouterr().out
    winners = ["compare", "--recipes", "search/winners", "--seeds", "1", "--jobs", "1"]
    assert cli.main(winners) == 2
    assert "would import and run code" in capsys.readouterr().err
    assert cli.main([*winners, "--allow-import", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [metric["key"] for metric in shown["metrics"]] == ["test_top1", "test_loss"]
    assert cli.main(["train", *own, "--optimizer", "sgd:lr=0.1", "--out", "run"]) == 0
    measure = ["spectrum", "run", "--curvature", "lanczos=3,probes=1"]
    assert cli.main(measure) == 2
    assert cli.main([*measure, "--allow-import"]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "own_problem:nt"], "cannot import 'own_problem:nt'"),
        (["--dataset", "own_problem:wrong"], "returned 'tran'; allowed: train"),
        (["--model", "mlp"], "needs a model by import path, too"),
    ],
)
def test_what_is_wrong_is_told(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    given = ["train", *SMALL, "--dataset", "own_problem:dictionary", *arguments, "--out", "run"]
    assert cli.main(given) == 2
    assert told in capsys.readouterr().err
    assert not Path("run").exists()


def test_figures_fit_the_template(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [*SMALL, "--dataset", "own_problem:data"]
    Path("space.toml").write_text("[sgd]\nlr = [1e-6, 0.1]\n[adamw]\nlr = [1e-6, 0.1]\n")
    icml = ["--figure-width", "icml"]
    search = ["sweep", "--space", "space.toml", *own, "--jobs", "1", "--out", "search", *icml]
    assert cli.main(search) == 0
    assert cli.main(["train", *own, "--optimizer", "sgd", "--out", "run"]) == 0
    measure = ["spectrum", "run", "--curvature", "lanczos=3,probes=1", "--allow-import", *icml]
    assert cli.main(measure) == 0
    drawn = [*Path("search/report").glob("*.svg"), *Path("run/spectrum").glob("*.svg")]
    assert drawn
    for path in drawn:
        points = float(path.read_text().partition('width="')[2].partition("pt")[0])
        assert points <= 3.25 * 72 + 0.1, path
    assert cli.main(["spectrum", "run", "--figure-width", "imcl"]) == 2
    assert "did you mean 'icml'" in capsys.readouterr().err
