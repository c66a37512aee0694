"""What the program foresaw is one line and exit status 1 or 2; a mistake of its own is reported."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lpsgd.lab.cli import app as cli
from lpsgd.lab.cli import optimizers
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from tests.lab.small_runs import small_recipe

SMALL = ["--width", "8", "--epochs", "2", "--train-size", "128", "--test-size", "64"]
SMALL += ["--batch-size", "32"]
RESUME = ["train", "--optimizer", "sgd:lr=0.05", *SMALL, "--out"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has paused after its first epoch."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(small_recipe(), folder, options=RunOptions(until_epoch=1))
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def answer(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    """Exit status and what was told, on one line."""
    status = cli.main([str(argument) for argument in arguments])
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return status, " ".join(told.split())


NESTED = "[" * 100_000 + "\n"
Damage = Callable[[Path], Any]


def _write(name: str, text: str) -> Damage:
    return lambda run: (run / name).write_text(text)


def _folder(name: str) -> Damage:
    def damage(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()

    return damage


def _metrics(**values: Any) -> Damage:
    def damage(run: Path) -> None:
        path = run / "metrics.jsonl"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}) + "\n")

    return damage


def _config(**values: Any) -> Damage:
    def damage(run: Path) -> None:
        path = run / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return damage


@pytest.mark.parametrize(
    ("damage", "commands", "told"),
    [
        (_write("config.json", '{"optim'), "report spectrum", "config.json"),
        (_write("config.json", '{"optimizer": {"name": "sgd"}}'), "spectrum", "config.json"),
        (_write("config.json", NESTED), "report spectrum train", "config.json"),
        (_write("environment.json", "[1]"), "report", "environment.json"),
        (_write("environment.json", NESTED), "report", "environment.json"),
        (_write("result.json", NESTED), "report train", "result.json"),
        (_write("comparison.json", NESTED), "report status", "comparison.json"),
        (_write("metrics.jsonl", NESTED), "report", "metrics.jsonl"),
        (_folder("metrics.jsonl"), "report train", "metrics.jsonl"),
        (_folder("result.json"), "report train", "result.json"),
        (_folder("environment.json"), "report", "environment.json"),
        (_metrics(test_top1=1e308), "report", "test_top1=1e+308 is no measurement"),
        (_metrics(test_nll=10**400), "report", "metrics.jsonl"),
        (_metrics(seconds=-1e200), "report", "seconds=-1e+200 is no measurement"),
    ],
)
def test_a_damaged_folder(
    damage: Damage, commands: str, told: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run)
    for command in commands.split():
        given = RESUME if command == "train" else [command]
        status, line = answer(capsys, *given, run)
        assert status in (1, 2), command
        assert told in line, command


@pytest.mark.parametrize("label", ["$x^$", r"$\frac$", "a$b", "\ud800", "%s {0}", "<b>"])
def test_any_label_can_be_drawn(label: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _config(label=label)(run)
    assert answer(capsys, "report", run, "--figure")[0] == 0
    assert (run / "curves.svg").exists()


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_what_is_not_finite_is_shown(
    value: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _metrics(test_top1=value, test_nll=value, train_nll=value, lr=value)(run)
    assert answer(capsys, "report", run) == (0, "")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: [1],
        lambda state: {},
        lambda state: {**state, "trainer": 3},
        lambda state: {**state, "metrics": {}},
        lambda state: {**state, "epoch": 10**24},
        lambda state: {**state, "batch": "x"},
        lambda state: {**state, "trainer": {**state["trainer"], "model": {"a": torch.zeros(2)}}},
        lambda state: {**state, "trainer": {**state["trainer"], "step": -1}},
    ],
)
def test_a_checkpoint_with_a_right_digest_and_wrong_content(
    change: Callable[[Any], Any], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (run / "checkpoints").iterdir()
    buffer = io.BytesIO()
    torch.save(change(torch.load(path, weights_only=True)), buffer)
    data = buffer.getvalue()
    name = f"{path.name[:15]}{hashlib.sha256(data).hexdigest()[:32]}.pt"
    path.unlink()
    (run / "checkpoints" / name).write_bytes(data)
    rows = (run / "metrics.jsonl").read_bytes()
    status, line = answer(capsys, *RESUME, run)
    if status:  # passed over as damaged, or refused
        assert "checkpoint" in line
        assert (run / "metrics.jsonl").read_bytes() == rows
    else:
        assert "is damaged" in line or "lost lines" in line


LONG = "1" * 24


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"train --width {LONG}", "width"),
        ("train --width 1000000 --model vgg11", "not enough memory"),
        (f"train --threads {LONG}", "threads"),
        ("train --threads 100000000", "threads"),
        (f"train --epochs {LONG}", "epochs"),
        (f"train --batch-size {LONG}", "batch_size"),
        (f"train --train-size {LONG}", "train_size"),
        (f"train --workers {LONG}", "workers"),
        (f"train --seed {LONG}", "seed"),
        ("train --optimizer lpsgdm:lr=" + "9" * 400, "lr"),
        (f"train --dataset synthetic --data classes={LONG}", "classes"),
        (f"train --curvature lanczos={LONG},samples=0", "samples"),
        ("compare --seeds 99999999999999", "--seeds"),
        (f"compare --jobs {LONG}", "--jobs"),
        ("sweep --space paper --sampler random --trials 99999999999999", "--trials"),
        ("sweep --space paper --seeds 99999999999999", "--seeds"),
        ("reproduce table1 --dry-run --seeds 99999999999999", "--seeds"),
        ("report " + "x" * 5000, "name too long"),
        ("train --out " + "x" * 5000, "name too long"),
        ("status a\0b", "null byte"),
        ("train --out a\0b", "NUL"),
        ("data verify cifar10 --root a\0b", ""),
        ("train --recipe a\0b", "NUL"),
        ("train --recipe nul.toml", "NUL"),
    ],
)
def test_numbers_and_paths_beyond_all_bounds(
    line: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nul.toml").write_text('dataset = "text"\nmodel = "gpt"\ndata.path = "a\\u0000b"\n')
    status, line = answer(capsys, *line.split(" "))
    assert status in (1, 2)
    assert told.lower() in line.lower()
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["nul.toml"], "nothing was begun"


def test_p_of_400_digits_is_infinity() -> None:
    assert small_recipe("lpsgdm:p=" + "9" * 400).settings["p"] == float("inf")


@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_a_damaged_database_of_trials(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    legacy = Path(__file__).parents[1] / "store/legacy/sweep/trials.db"
    path = tmp_path / "trials.db"
    path.write_bytes(legacy.read_bytes()[:5000] if damage == "cut" else b"noise" * 999)
    space = tmp_path / "space.toml"
    space.write_text("[sgd]\nlr = [0.1, 0.2]\n")
    given = ["sweep", "--space", space, *SMALL, "--out", tmp_path / "out"]
    status, line = answer(capsys, *given, "--storage", f"sqlite:///{path}")
    assert status == 1
    assert "cannot use the storage" in line


def test_a_mistake_of_the_program_shows_where_it_is_and_how_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(rows: Any) -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(optimizers, "_print", broken)
    assert cli.main(["optimizers"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "ZeroDivisionError: injected" in told
    assert told.splitlines()[-1].startswith("lpsgd: this is a mistake in lpsgd. Please report it")


@pytest.mark.slow
def test_a_terminal_that_cannot_show_greek_letters(run: Path) -> None:
    command = [sys.executable, "-m", "lpsgd", "spectrum", str(run)]
    done = subprocess.run(
        [*command, "--curvature", "probes=1,lanczos=2,samples=8"],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "curvature at epoch 1: ? from" in done.stdout
