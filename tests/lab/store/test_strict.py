"""Stored values that this version does not know, and folders of somebody else."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from lpsgd.lab.cli import app
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.plan import plan_recipes
from lpsgd.lab.store.manifest import run_place
from lpsgd.lab.store.run_files import read_result
from lpsgd.lab.store.run_folder import heartbeat_host, open_run
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from tests.lab.small_runs import small_recipe


@pytest.mark.parametrize("state", ["zzz", "paused?", "", "COMPLETE"])
def test_an_unknown_state_is_an_error_that_names_file_and_value(state: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"state": state, "epochs": 2}))
    with pytest.raises(UserError, match="not the result of a run that lpsgd .* knows .state='"):
        read_result(tmp_path)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    recipe = small_recipe("sgd:lr=0.05")
    folder = tmp_path / "run"
    train(recipe, folder, options=RunOptions(until_epoch=1))
    (path,) = (folder / "checkpoints").iterdir()
    state = torch.load(path, weights_only=True)
    buffer = io.BytesIO()
    torch.save({**state, "version": 99}, buffer)
    data = buffer.getvalue()
    path.unlink()
    step = path.name.split("-")[1]
    digest = hashlib.sha256(data).hexdigest()[:32]
    (folder / "checkpoints" / f"step-{step}-{digest}.pt").write_bytes(data)
    with pytest.raises(LabError, match="has version 99; lpsgd .* knows version 1"):
        train(recipe, folder)


def test_a_heartbeat_of_the_future_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / ".alive"
    path.write_text("elsewhere")
    assert heartbeat_host(tmp_path) == "elsewhere"
    later = time.time() + 1e6
    os.utime(path, (later, later))
    assert heartbeat_host(tmp_path) is None


@pytest.mark.parametrize("label", ["..", ".", "", "a/../..", "/etc", "../../up", "nul\0"])
def test_no_label_leaves_its_folder(label: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        run_place(tmp_path, label, 0)


def test_a_recipe_file_whose_name_is_dots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "...toml").write_text('optimizer = "sgd"\nmodel = "mlp"\n')
    with pytest.raises(UserError, match="its name makes no label"):
        plan_recipes([tmp_path / "...toml"], {}, range(1), tmp_path / "out")


def test_files_that_another_program_left_are_not_removed(tmp_path: Path) -> None:
    recipe = small_recipe("sgd:lr=0.05")
    folder = tmp_path / "mine"
    theirs = folder / "notes" / ".draft.part"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    (folder / ".download.part").write_text("mine")
    with pytest.raises(UserError, match="holds other files"), open_run(folder, recipe):
        pass
    assert theirs.read_text() == "mine"
    # of a run, what a killed process left is removed, and nothing else
    run = tmp_path / "run"
    train(recipe, run, options=RunOptions(until_epoch=1))
    (run / "checkpoints" / ".step-000000009-0.pt.x.part").write_text("half")
    (run / ".config.json.abc.part").write_text("half")
    (run / ".download.part").write_text("mine")
    with open_run(run, recipe):
        assert not [*(run / "checkpoints").glob(".*.part")]
        assert not (run / ".config.json.abc.part").exists()
        assert (run / ".download.part").read_text() == "mine"


def test_an_empty_folder_of_the_user_stays_when_a_run_cannot_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    flags = ["--dataset", "cifar10", "--root", str(tmp_path / "nowhere")]
    assert app.main(["train", "--model", "resnet18", *flags, "--out", str(mine)]) != 0
    assert mine.is_dir()
    assert app.main(["train", "--model", "resnet18", *flags, "--out", str(tmp_path / "new")]) != 0
    assert not (tmp_path / "new").exists()


ESCAPE = "\x1b]0;title\x07\x1b[2J\x9b31m"


def test_escape_sequences_of_stored_text_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "comparison"
    shutil.copytree(Path(__file__).parent / "legacy/comparison", folder)
    for path in [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]:
        lines = [json.loads(line) for line in path.read_text().splitlines()] if (
            path.suffix == ".jsonl"
        ) else [json.loads(path.read_text())]  # fmt: skip
        for found in lines:
            found["reason"] = found["command"] = ESCAPE
            for key in ("model", "dataset", "label"):
                if key in found:
                    found[key] = f"{found[key]}{ESCAPE}"
        path.write_text("".join(json.dumps(found) + "\n" for found in lines))
    for command in (["status", str(folder)], ["report", str(folder)]):
        assert app.main(command) == 0
        shown = capsys.readouterr()
        assert not set(shown.out + shown.err) & set("\x1b\x07\x9b")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_json_that_is_nested_too_deeply_is_a_damaged_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UserError, match="cannot read"):
        read_result(tmp_path)
