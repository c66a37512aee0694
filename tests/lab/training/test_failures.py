"""What can go wrong while a run goes on: it is said clearly, and nothing that was saved is lost."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lpsgd.lab.cli import app as cli
from lpsgd.lab.errors import Interrupted, LabError, UserError
from lpsgd.lab.store.metrics_file import MetricsFile, MetricsRow
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from tests.lab.small_runs import assert_same_run, metrics, read, small_recipe

# ---------------------------------------------------------------------- divergence


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    result = train(small_recipe("sgd:lr=1e30", epochs=3), tmp_path)
    assert result.state == "diverged"
    assert result.step == 2, "the first step with the huge learning rate breaks the second loss"
    assert "the training loss became" in result.reason
    for word in ("step=2", "lr=", "gradient norm="):
        assert word in result.reason
    assert result.lr == pytest.approx(1e30 * 2 / 5)
    stored = read(tmp_path, "result.json")
    assert stored["state"] == "diverged"
    assert not (tmp_path / "metrics.jsonl").exists()
    again = train(small_recipe("sgd:lr=1e30", epochs=3), tmp_path)
    assert again.state == "diverged"


def test_a_diverged_run_fails_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "train",
        "--optimizer",
        "sgd:lr=1e30",
        "--width",
        "8",
        "--out",
        str(tmp_path / "run"),
    ]
    assert cli.main([*command, "--json"]) == 1
    shown = capsys.readouterr()
    assert "lpsgd: diverged: the training loss became" in shown.err
    assert json.loads(shown.out)["state"] == "diverged"


def test_divergence_names_p(tmp_path: Path) -> None:
    result = train(small_recipe("lpsgdm:lr=1e30,p=5,p_schedule=constant"), tmp_path)
    assert result.state == "diverged"
    assert result.p == 5
    assert "p=5.0" in result.reason


def test_weights_broken_by_the_last_step_are_noticed(tmp_path: Path) -> None:
    """No training loss sees them, so the test loss must."""
    recipe = small_recipe("sgd:lr=1e38", epochs=1, batch_size=128, warmup_epochs=0)
    result = train(recipe, tmp_path)
    assert result.state == "diverged"
    assert "the test loss became" in result.reason
    (line,) = metrics(tmp_path)
    assert not math.isfinite(float(line["test_nll"]))


def test_losses_are_looked_at_in_groups_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bad one of a group is reported, with its own step."""
    monkeypatch.setattr("lpsgd.lab.training.trainer._LOSSES_PER_CHECK", {"cpu": 5})
    result = train(small_recipe("sgd:lr=1e30", epochs=3), tmp_path)
    assert result.state == "diverged"
    assert result.step == 2


# ---------------------------------------------------------------------- disks and folders


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """After ``left`` more calls of fsync the disk is full, as delayed allocation reports it."""
    state = {"left": 10**9}
    real = os.fsync

    def fsync(handle: int) -> None:
        state["left"] -= 1
        if state["left"] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return state  # type: ignore[return-value]


@pytest.mark.parametrize("writes", [0, 1, 2, 5, 8, 11, 12, 13])
def test_a_full_disk(tmp_path: Path, full_disk: dict[str, int], writes: int) -> None:
    """Whichever write fails: an error that says so, and after making room the same end."""
    recipe = small_recipe()
    train(recipe, tmp_path / "whole")
    full_disk["left"] = writes
    options = RunOptions(save_seconds=0)
    with pytest.raises(LabError, match=r"the disk is full .*make room and give the same command"):
        train(recipe, tmp_path / "run", options=options)
    present = list((tmp_path / "run").rglob("*")) if (tmp_path / "run").exists() else []
    assert not [path for path in present if path.suffix == ".part"]
    full_disk["left"] = 10**9
    train(recipe, tmp_path / "run", options=options)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(MetricsRow(epoch=1))
    before = (tmp_path / "metrics.jsonl").read_text()
    real = os.write
    calls: list[int] = []

    def write(handle: int, data: bytes) -> int:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data[:3])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(LabError, match="disk is full"):
        file.append(MetricsRow(epoch=2))
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert json.loads(before)["epoch"] == 1


def test_a_really_full_disk(tmp_path: Path) -> None:
    """A file system too small for one checkpoint."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount program here")
    if done.returncode != 0:
        pytest.skip("mounting a small file system needs privileges")
    try:
        with pytest.raises(LabError, match="the disk is full"):
            train(small_recipe(width=64), place / "run")
        assert read(place / "run", "config.json")["label"] == "sgd"
        assert [line["epoch"] for line in metrics(place / "run")] == [1, 2]
        assert not list((place / "run/checkpoints").iterdir())
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LabError, match=r"cannot write to .*file/run: Not a directory"):
        train(small_recipe(), tmp_path / "file" / "run")


def test_a_folder_of_another_recipe(tmp_path: Path) -> None:
    train(small_recipe(), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="another recipe: epochs is 2 there and 3 here; seed is 0"):
        train(small_recipe(epochs=3, seed=1), tmp_path / "run")
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert after == before


def test_a_folder_from_before_a_field_existed(tmp_path: Path) -> None:
    recipe = small_recipe()
    train(recipe, tmp_path / "run")
    path = tmp_path / "run/config.json"
    config = read(tmp_path / "run", "config.json")
    del config["recipe"]["lr_end"]
    path.write_text(json.dumps(config))
    assert train(recipe, tmp_path / "run").state == "complete"
    path.write_text('{"recipe": {"nonsense": 1}}')
    with pytest.raises(UserError, match="config.json cannot be read .*unknown key 'nonsense'"):
        train(recipe, tmp_path / "run")


def test_a_folder_with_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex\)"):
        train(small_recipe(), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "nonsense"}, "nonsense"),
        ({"model": "nonsense"}, "nonsense"),
        ({"batch_size": 500}, "batch_size is 500; .* only 128"),
        ({"device": "nonsense"}, "device='nonsense' is not a device"),
        ({"device": "meta"}, "device='meta' is not a device"),
        ({"data": {"nonsense": 1}}, "nonsense"),
    ],
)
def test_a_wrong_recipe_leaves_no_folder(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(small_recipe(**values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_state_that_could_not_be_loaded_is_refused_at_the_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.optim.SGD, "state_dict", lambda self: {"odd": Path("x"), "state": {}})
    with pytest.raises(LabError, match="not tensors and plain values"):
        train(small_recipe(), tmp_path / "run", options=RunOptions(save_seconds=0))


_KILLS_AN_IMAGE_WORKER = """
import multiprocessing, os, signal, sys, time
from lpsgd.lab.cli import app as cli
from lpsgd.lab.training import loop as training

def kill(*arguments, step=training.Trainer.train_step, **options):
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGKILL)
    time.sleep(0.2)
    return step(*arguments, **options)

training.Trainer.train_step = kill
sys.exit(cli.main(sys.argv[1:]))
"""


def test_an_image_worker_that_is_killed_ends_the_run_with_a_message(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(8):
                Image.new("RGB", (32, 32)).save(tmp_path / split / name / f"{number}.jpg")
    given = ["train", "--dataset", "imagefolder", "--data", f"path={tmp_path}"]
    given += ["--data", "size=16"]
    given += ["--model", "mlp", "--width", "8", "--epochs", "1", "--batch-size", "4"]
    given += ["--workers", "1", "--out", str(tmp_path / "run")]
    # in a process of its own: torch raises the error wherever the main thread happens to be
    command = [sys.executable, "-c", _KILLS_AN_IMAGE_WORKER, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "a process that decodes images was lost: DataLoader worker" in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------- what a run records


def test_environment_has_no_variables_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2-hunter2")
    train(small_recipe(), tmp_path / "run")
    environment = read(tmp_path / "run", "environment.json")
    assert {"python", "packages", "commit", "cpu", "gpus", "threads"} <= environment.keys()
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


def test_a_run_that_moves_keeps_what_it_began_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    stop.set()
    for name in ("first", "first", "second"):
        monkeypatch.setattr("lpsgd.lab.store.run_files._cpu_name", lambda name=name: name)
        with pytest.raises(Interrupted):
            train(small_recipe(), tmp_path / "run", stop=stop)
    train(small_recipe(), tmp_path / "run")
    environment = read(tmp_path / "run", "environment.json")
    assert environment["cpu"] == "second"
    assert [machine["cpu"] for machine in environment["earlier"]] == ["first"]


def test_train_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("epochs = 9\nwidth = 8\ntrain_size = 128\nbatch_size = 32\n")
    command = ["train", "--recipe", str(recipe), "--epochs", "2", "--optimizer", "sgd:lr=0.05"]
    assert cli.main([*command, "--test-size", "64", "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "complete; the run is in" in shown.out
    assert "epoch 2/2" in shown.err
    train(small_recipe(), tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "resnet18", "--width", "4"], "width=4 is too narrow for resnet18 on a CPU"),
        (["--optimizer", "lpsgmd"], "did you mean 'lpsgd'"),
        (["--optimizer", "sgd:lr=-1"], "Invalid learning rate"),
        (["--epochs", "0"], "epochs=0"),
        (["--data", "x"], "write key=value"),
        (["--dataset", "text", "--data", "path=5"], "cannot read the text 5: No such file"),
        (["--dataset", "text", "--data", "path="], "--data: cannot read 'path=': write key=value"),
        (["--dataset", "cifar10", "--data", "check=maybe"], "check is 'maybe'; allowed: true"),
        (["--recipe", "absent.toml"], "No such file"),
    ],
)
def test_wrong_input_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["train", "--out", str(tmp_path / "run"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
