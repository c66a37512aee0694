"""`lpsgd.lab.compare` and its companions on the user's own objects."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lpsgd import LPSGDM
from lpsgd.lab import compare, sweep, train
from lpsgd.lab.errors import UserError
from lpsgd.lab.store.metrics_file import read_metrics

from ..own.problems import Noisy, Stream, classes, classifier, numbers

SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seeds": 2, "jobs": 0}


def metrics_of(folder: Path) -> dict[str, list[Any]]:
    """Everything that was measured in a folder's runs, but times."""
    found = {}
    for path in sorted(folder.rglob("metrics.jsonl")):
        rows = [row.flat() for row in read_metrics(path)]
        for row in rows:
            for name in ("seconds", "optimizer_seconds", "images_per_second"):
                del row[name]
        found[path.parent.relative_to(folder).as_posix()] = rows
    return found


def test_a_comparison_of_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Mine(torch.optim.SGD):
        """A class that no import path names."""

    optimizers = ["sgd:lr=0.1", LPSGDM, partial(torch.optim.AdamW, lr=0.003), partial(Mine, lr=0.1)]
    asked: dict[str, Any] = dict(model=classifier, train=classes(), test=classes(40), **SMALL)
    result = compare(optimizers, out=tmp_path, **asked)
    assert [row["optimizer"] for row in result.rows] == ["sgd", "lpsgdm", "AdamW", "Mine"]
    assert [metric.key for metric in result.analysis.metrics] == ["test_top1", "test_loss"]
    configs = [json.loads(p.read_text()) for p in sorted(tmp_path.rglob("config.json"))]
    settings = {c["label"]: c["optimizer"]["settings"] for c in configs}
    assert settings["lpsgdm"]["p_schedule"] == "cosine", "the entry of the registry"
    assert settings["AdamW"] == {"lr": 0.003}, "the defaults of the class"
    assert "classifier on own data: 4 optimizers, 2 seeds" in repr(result)
    assert result.verdict.startswith("Too few seeds for a verdict")
    page = result.page.read_text()
    assert "Test top1" in page
    assert "<svg" in result._repr_html_()
    before = metrics_of(tmp_path)
    capsys.readouterr()
    assert compare(optimizers, out=tmp_path, **asked).rows == result.rows, (
        "nothing is trained twice"
    )
    assert metrics_of(tmp_path) == before


def test_the_numbers_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    data = numbers()
    run = train(
        partial(torch.optim.SGD, lr=0.05),
        model=lambda: nn.Linear(6, 1),
        train=data,
        test=data,
        metrics={"mae": lambda o, t: (o.squeeze(-1) - t).abs().mean()},
        epochs=3,
        batch_size=96,
        lr_schedule="constant",
        warmup_epochs=0.0,
        out=tmp_path,
    )
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = data
    for row in run.history:
        loss = (model(x).squeeze(-1) - y).square().mean()
        assert row["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mae = (model(x).squeeze(-1) - y).abs().mean().item()
        assert row["test_mae"] == pytest.approx(mae, rel=1e-5)
    loaded = run.load_model()
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-5, atol=1e-6)


def test_processes_change_no_number(tmp_path: Path) -> None:
    scale = 2.0  # a closure, which plain pickle does not send

    def loss(output: Any, target: Any) -> Any:
        return scale * nn.functional.cross_entropy(output, target)

    asked: dict[str, Any] = {
        "model": classifier,
        "train": Noisy(),
        "test": classes(40),
        "loss": loss,
    }
    compare(["sgd", "adamw"], out=tmp_path / "here", **asked, **SMALL)
    compare(["sgd", "adamw"], out=tmp_path / "there", **asked, **{**SMALL, "jobs": 2})
    assert metrics_of(tmp_path / "here") == metrics_of(tmp_path / "there")


def test_what_cannot_be_sent_is_trained_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Locked(Noisy):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()  # no process can be given it

    data = Locked()
    compare(
        "sgd", model=classifier, train=data, test=classes(40), out=tmp_path, **{**SMALL, "jobs": 2}
    )
    told = capsys.readouterr().err
    assert "one after the other, in this process" in told
    assert re.search(r"cannot be given train \(.*_thread.lock", told)


SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from lpsgd.lab import compare

kill_at, out = int(sys.argv[1]), sys.argv[2]
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long()
steps = 0

def loss(output, target):
    global steps
    steps += 1
    if steps == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.functional.cross_entropy(output, target)

class Mine(torch.optim.SGD):
    pass

compare([Mine, "lpsgdm"] if False else ["sgd", "lpsgdm"],
    model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)),
    train=(x, y), test=(x, y), loss=loss, epochs=3, batch_size=8, seeds=2, save_seconds=0,
    jobs=0, out=out)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [13, 40])
def test_a_killed_script_ends_with_the_same_numbers(tmp_path: Path, kill_at: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def call(at: int, out: str) -> int:
        command = [sys.executable, str(script), str(at), str(tmp_path / out)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert call(0, "whole") == 0
    assert call(kill_at, "killed") == -signal.SIGKILL
    assert call(0, "killed") == 0
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")


def test_a_stream_resumes_at_the_epoch(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "model": classifier,
        "train": DataLoader(Stream(), batch_size=16),
        "test": classes(40),
        "epochs": 3,
    }
    train("sgd", out=tmp_path / "whole", **asked)
    count = 0

    def stop_once(output: Any, target: Any) -> Any:
        nonlocal count
        count += 1
        if count == 12:
            signal.raise_signal(signal.SIGINT)
        return nn.functional.cross_entropy(output, target)

    from lpsgd.lab.errors import Interrupted

    del asked["epochs"]
    whole = dict(asked, epochs=3, metrics={"loss": "min"})
    train("sgd", out=tmp_path / "plain", **whole)
    with pytest.raises(Interrupted, match="resumes at the beginning of this epoch"):
        train("sgd", loss=stop_once, out=tmp_path / "stopped", **whole)
    train("sgd", loss=stop_once, out=tmp_path / "stopped", **whole)
    first, second = metrics_of(tmp_path / "plain"), metrics_of(tmp_path / "stopped")
    assert first == second


def test_a_search_then_a_comparison_of_its_winners(tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "model": lambda: nn.Linear(6, 1),
        "train": numbers(),
        "test": numbers(40),
    }
    space = {
        "plain": {"optimizer": torch.optim.SGD, "lr": [1e-5, 0.1]},
        "adamw": {"lr": [1e-5, 0.1]},
    }
    found = sweep(space, epochs=3, batch_size=16, jobs=0, out=tmp_path / "search", **own)
    assert {label: s["lr"] for label, s in found.settings.items()} == {"plain": 0.1, "adamw": 0.1}
    assert all(trial["value"] == pytest.approx(-trial["top1"]) for trial in found.trials)
    assert "validation loss" in repr(found).replace("\n", " ") or "loss" in repr(found)
    assert found.page.exists()
    result = compare(recipes=found.recipes, out=tmp_path / "winners", allow_import=True, seeds=2,
                     jobs=0, **own)  # fmt: skip
    assert [row["optimizer"] for row in result.rows] == ["plain", "adamw"]
    assert [text.partition(":")[0] for text in found.optimizers] == [
        "plain=torch.optim.sgd",
        "adamw=adamw",
    ]


SHARED = classifier()


def drawn_elsewhere() -> nn.Module:
    torch.manual_seed(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
    return classifier()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": lambda: SHARED}, "same object, or the same parameters, twice"),
    ({"model": lambda: 3}, "returned a int; allowed: a new torch.nn.Module"),
    ({"model": lambda: nn.ReLU()}, "no parameter that requires grad"),
    ({"model": "mlp"}, "model='mlp' is the name of one of ours"),
    ({"model": None}, "model is missing"),
    ({"model": drawn_elsewhere}, "other weights for the same seed"),
    ({"loss": lambda o, t: (o[:, 0] - t).square()}, r"loss is of shape \(16,\); allowed"),
    ({"loss": lambda o, t: o.mean() * float("nan")}, "loss is nan on the first batch"),
    ({"loss": lambda o, t: torch.tensor(1.0)}, "does not depend on the model's parameters"),
    ({"loss": 3}, "loss=3 is not a function"),
    ({"loss": nn.functional.cross_entropy, "step": lambda m, b: 1}, "loss and step are both given"),
    ({"metrics": {"f1": lambda o, t: float("nan")}}, "metrics: f1 is nan on the first test batch"),
    ({"metrics": [1]}, "allowed: a dict"),
    ({"test": None}, "test is missing"),
    ({"train": DataLoader(Noisy(), batch_size=8)}, "batch_size=16, and the loader .* batches of 8"),
    ({"dataset": "digits"}, "dataset='digits' and train are both given"),
    ({"optimizers": ["sgd:lr=-1"]}, "lr"),
    ({"optimizers": [torch.optim.Muon]}, "Muon"),
    ({"optimizers": [3]}, "optimizers: 3 is a int; allowed: the name"),
    ({"optimizers": [partial(torch.optim.SGD, lr=torch.ones(1))]}, "lr=tensor.* is not a number"),
    ({"seeds": 0}, "seeds=0; allowed"),
    ({"seeds": [1, 1]}, "a list of different ones"),
    ({"jobs": -1}, "jobs=-1; allowed"),
    ({"epochz": 3}, "did you mean 'epochs'"),
    ({"reference": "adam"}, "label"),
    ({"executor": "ray", "jobs": None}, "import paths"),
]


@pytest.mark.parametrize(("changes", "told"), BAD, ids=[told[:30] for _, told in BAD])
def test_bad_input_is_told_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    good: dict[str, Any] = dict(
        optimizers=["sgd"], model=classifier, train=classes(), test=classes(40), **SMALL
    )
    out = tmp_path / "out"
    with pytest.raises(UserError, match=told):
        compare(**{**good, **changes}, out=out)
    assert not out.exists() or "executor" in changes


def test_a_folder_keeps_to_one_problem(tmp_path: Path) -> None:
    asked: dict[str, Any] = dict(model=classifier, test=classes(40), out=tmp_path, **SMALL)
    compare("sgd", train=classes(), **asked)
    before = metrics_of(tmp_path)
    x, y = classes()
    for changes in ({"train": (x + 1, y)}, {"train": (x, y), "model": lambda: nn.Linear(6, 2)}):
        for optimizer in ("sgd", "adamw"):  # also where none of its runs would be touched
            with pytest.raises(UserError, match=r"belongs to another recipe: .*problem"):
                compare(optimizer, **{**asked, **changes})
    assert metrics_of(tmp_path) == before


def test_names_of_the_laboratory_work_too(tmp_path: Path) -> None:
    result = compare(
        "sgd,adamw", model="mlp", dataset="digits", train_size=64, epochs=1, seeds=1, jobs=0,
        batch_size=32, out=tmp_path / "a",
    )  # fmt: skip
    assert [metric.key for metric in result.analysis.metrics] == ["test_top1", "test_nll"]
    own = train(
        "sgd",
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(1024, 10)),
        dataset="digits",
        train_size=64,
        batch_size=32,
        epochs=1,
        out=tmp_path / "b",
    )
    assert own.history[-1]["test_top1"] > 0
