"""A run that is stopped in any way ends as if it had never been stopped."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lpsgd.lab.errors import LabError
from lpsgd.lab.events import RunEvent
from lpsgd.lab.recipe import Recipe, to_json
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from tests.lab.small_runs import (
    assert_same_run,
    metrics,
    read,
    small_recipe,
    train_in_child,
    train_with_stops,
)

SAM = "pytorch_optimizer:SAM:base_optimizer=torch.optim:SGD,lr=0.05,momentum=0.9"
EVERYTHING = {
    "ema": 0.9,
    "accumulate": 2,
    "clip_norm": 1.0,
    "label_smoothing": 0.1,
    "val_size": 32,
    "train_eval_every": 1,
}
CASES = {
    "sgd": small_recipe("sgd:lr=0.05,weight_decay=1e-3"),
    "adamw": small_recipe("adamw"),
    "lpsgdm": small_recipe("lpsgdm:lr=1e-2,weight_decay=0.01", **EVERYTHING),
    "lpsgd, p per step": small_recipe("lpsgd:lr=1e-2,p_schedule=cosine-step"),
    "a batch norm network": small_recipe("sgdw:weight_decay=0.1", model="resnet18", ema=0.5),
    "an optimizer that draws": small_recipe("pytorch_optimizer:SophiaH", create_graph=True),
    "an optimizer that calls back": small_recipe(SAM, closure=True),
    "text": small_recipe("adamw", dataset="text", model="gpt", train_size=64, epochs=3),
}


@pytest.mark.parametrize("name", CASES)
def test_stops_change_nothing(tmp_path: Path, name: str) -> None:
    recipe = CASES[name]
    train(recipe, tmp_path / "whole")
    stops = train_with_stops(recipe, tmp_path / "parts", seed=0)
    assert stops >= 1
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_scaler_of_fp16_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the scale changes when it has been right for long enough: make that three steps
    monkeypatch.setattr("torch.amp.GradScaler.get_growth_interval", lambda self: 3)
    from lpsgd.lab.training import precision, trainer

    def scaler(name: str, device: object) -> object:
        made = precision.make_scaler(name, device)  # type: ignore[arg-type]
        made.set_growth_interval(3)
        return made

    monkeypatch.setattr(trainer, "make_scaler", scaler)
    monkeypatch.setattr(precision, "probe", lambda dtype: None)
    recipe = small_recipe("lpsgdm:lr=1e-2", precision="fp16")
    train(recipe, tmp_path / "whole")
    train_with_stops(recipe, tmp_path / "parts", seed=1)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_an_ended_run_is_not_trained_again(tmp_path: Path) -> None:
    recipe = small_recipe()
    first = train(recipe, tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    events: list[str] = []
    again = train(recipe, tmp_path / "run", listen=lambda event: events.append(event.kind))
    assert again == first
    assert events == ["end"]
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """SIGKILL at random moments, some while it writes its files: at least 20 times in all.

    A fast machine ends a run after few kills, so further runs are killed until there are enough.
    """
    recipe = small_recipe("lpsgdm:lr=1e-2", epochs=8, **EVERYTHING)
    train(recipe, tmp_path / "whole")
    chance = random.Random(0)
    kills = fruitful = lives = 0
    while kills < 20 or fruitful < 8:
        folder = tmp_path / f"killed-{lives}"
        more, of_use = kill_until_it_ends(recipe, folder, chance)
        kills, fruitful, lives = kills + more, fruitful + of_use, lives + 1
        assert_same_run(tmp_path / "whole", folder)
        assert not list(folder.rglob("*.part"))
        assert lives < 40, f"only {kills} kills, {fruitful} after a step"


def kill_until_it_ends(recipe: Recipe, folder: Path, chance: random.Random) -> tuple[int, int]:
    """Kill one run again and again; how often, and how often it had got further before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lpsgd.lab.training.loop", "sklearn.datasets"])
    kills = fruitful = 0
    while True:
        before = checkpoints(folder)
        child = context.Process(target=train_in_child, args=(to_json(recipe), str(folder), 0.0))
        child.start()
        # most often let it get going first, or few kills would come after the first step
        patient = chance.random() < 0.8
        while patient and child.is_alive() and not checkpoints(folder) - before:
            child.join(0.002)
        child.join(chance.uniform(0, 0.1) if kills < 60 else None)
        if child.exitcode == 0:
            return kills, fruitful
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        if child.exitcode == -signal.SIGKILL:
            kills += 1
            fruitful += bool(checkpoints(folder) - before)


def checkpoints(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").glob("*.pt")}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_exit_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "lpsgd", "train", "--epochs", "1000", "--width", "8"]
    command += ["--optimizer", "sgd:lr=0.05", "--out", str(tmp_path / "run")]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run/metrics.jsonl")
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "saved in" in errors
    assert "Traceback" not in errors
    assert list((tmp_path / "run/checkpoints").glob("*.pt"))
    assert not (tmp_path / "run/result.json").exists()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


# ---------------------------------------------------------------------- damage


def stopped_run(folder: Path) -> list[Path]:
    """A run stopped after six of eight steps with two checkpoints, the newest first."""
    from lpsgd.lab.errors import Interrupted
    from tests.lab.small_runs import StopAfter

    recipe = small_recipe()
    with pytest.raises(Interrupted):
        train(recipe, folder, options=RunOptions(save_seconds=0), stop=StopAfter(8))  # type: ignore[arg-type]
    found = sorted((folder / "checkpoints").glob("*.pt"), reverse=True)
    assert len(found) == 2
    return found


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
@pytest.mark.parametrize("how_many", [1, 2])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, damage: str, how_many: int
) -> None:
    train(small_recipe(), tmp_path / "whole")
    for path in stopped_run(tmp_path / "run")[:how_many]:
        data = bytearray(path.read_bytes())
        if damage == "cut":
            data = data[: len(data) // 2]
        elif damage == "flip":
            data[len(data) // 2] ^= 1
        else:
            data = bytearray()
        path.write_bytes(data)
    events: list[RunEvent] = []
    train(small_recipe(), tmp_path / "run", listen=events.append)
    warnings = [event.text for event in events if event.kind == "warning"]
    assert len(warnings) == how_many
    assert "is damaged" in str(warnings[0])
    start = next(event for event in events if event.kind == "start")
    assert (start.step == 0) == (how_many == 2)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_checkpoint_that_the_disk_does_not_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A damaged block is damage; one who may not read must not go back to an older one."""
    train(small_recipe(), tmp_path / "whole")
    newest = stopped_run(tmp_path / "run")[0]
    read_bytes = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path == newest:
            raise OSError(number, os.strerror(number))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    if number == errno.EACCES:
        with pytest.raises(LabError, match=f"cannot read {newest}: Permission denied"):
            train(small_recipe(), tmp_path / "run")
        assert newest.exists()
    else:
        train(small_recipe(), tmp_path / "run")
        assert_same_run(tmp_path / "whole", tmp_path / "run")


class Hostile:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.witness),)


def test_a_hostile_checkpoint_under_a_right_name_runs_nothing(tmp_path: Path) -> None:
    import hashlib

    import torch

    train(small_recipe(), tmp_path / "whole")
    newest = stopped_run(tmp_path / "run")[0]
    torch.save({"trainer": Hostile(tmp_path / "witness")}, newest)
    digest = hashlib.sha256(newest.read_bytes()).hexdigest()[:32]
    newest.rename(newest.with_name(f"{newest.name[:14]}-{digest}.pt"))
    events: list[RunEvent] = []
    train(small_recipe(), tmp_path / "run", listen=events.append)
    assert not (tmp_path / "witness").exists()
    assert "is damaged" in str([e.text for e in events if e.kind == "warning"])
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_lost_lines_of_metrics_are_computed_again(tmp_path: Path) -> None:
    train(small_recipe(), tmp_path / "whole")
    stopped_run(tmp_path / "run")
    (tmp_path / "run/metrics.jsonl").write_bytes(b"")
    train(small_recipe(), tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_lines_after_the_checkpoint_are_cut(tmp_path: Path) -> None:
    train(small_recipe(), tmp_path / "whole")
    stopped_run(tmp_path / "run")
    with (tmp_path / "run/metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 99}\n{"half a li')
    train(small_recipe(), tmp_path / "run")
    assert [line["epoch"] for line in metrics(tmp_path / "run")] == [1, 2]
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_checkpoints_hold_nothing_that_could_run(tmp_path: Path) -> None:
    import torch

    train(small_recipe(), tmp_path / "run")
    (path,) = (tmp_path / "run/checkpoints").glob("*.pt")
    assert torch.load(path, weights_only=True)["epoch"] == 3


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    from lpsgd.lab.store.run_folder import open_run

    recipe = small_recipe()
    with (
        open_run(tmp_path / "run", recipe),
        pytest.raises(LabError, match="in use by another process"),
    ):
        train(recipe, tmp_path / "run")


def test_image_workers_that_outlive_a_killed_run_do_not_hold_its_folder(tmp_path: Path) -> None:
    from lpsgd.lab.store.disk.lock import is_held
    from lpsgd.lab.store.run_folder import open_run

    context = multiprocessing.get_context("fork")  # as torch starts them
    with open_run(tmp_path / "run", small_recipe()):
        (tmp_path / "run/checkpoints").mkdir()  # or the empty folder would be removed
        worker = context.Process(target=time.sleep, args=(60,))
        worker.start()
        time.sleep(0.2)
        assert is_held(tmp_path / "run")
    try:
        assert worker.is_alive()
        assert not is_held(tmp_path / "run")
    finally:
        worker.kill()
        worker.join()


def test_result_says_how_it_ended(tmp_path: Path) -> None:
    train(small_recipe("adamw"), tmp_path / "run")
    result = read(tmp_path / "run", "result.json")
    assert result["state"] == "complete"
    assert result["epochs"] == 2
    assert result["step"] == 8
    # two moments of float32 for each parameter, and a count for each tensor
    parameters = result["parameters"]
    assert 8 * parameters < result["state_bytes"] < 8 * parameters + 1000
