"""`lpsgd status`: from the files of the runs alone."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lpsgd.lab.cli import app as cli
from lpsgd.lab.errors import Interrupted, LabError, UserError
from lpsgd.lab.execution.progress import time_left
from lpsgd.lab.plan import Task, plan_comparison
from lpsgd.lab.store.disk.lock import is_held
from lpsgd.lab.store.manifest import write_comparison, write_plan
from lpsgd.lab.store.run_files import write_error
from lpsgd.lab.store.run_folder import open_run, write_heartbeat
from lpsgd.lab.store.status import RunProgress, Status, read_status
from lpsgd.lab.training.loop import train
from tests.lab.comparing import SMALL_VALUES, kill_own_process, run_compare
from tests.lab.small_runs import StopAfter, small_recipe


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's folder as the process that trains it does."""
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield
    os.close(handle)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of which every run is somewhere else."""
    out = tmp_path_factory.mktemp("status") / "out"
    _, tasks = plan_comparison(
        SMALL_VALUES, ["sgd:lr=0.05", "lpsgdm:lr=1e30", "adamw"], range(2), out
    )
    write_comparison(out, tasks, ["sgd", "lpsgdm", "adamw"], "sgd")
    sgd, lpsgdm, adamw = tasks[:3]
    train(sgd.recipe, sgd.folder, label="sgd")
    train(lpsgdm.recipe, lpsgdm.folder, label="lpsgdm")
    stop: Any = StopAfter(6)
    with pytest.raises(Interrupted):
        train(adamw.recipe, adamw.folder, label="adamw", stop=stop)
    write_error(out / "runs/lpsgdm/seed-1", "the disk is full")
    return out


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def states(folder: Path) -> dict[str, str]:
    runs = read_status(folder).runs
    return {f"{run.label} {run.seed}": run.state for run in runs}


def test_every_state(folder: Path) -> None:
    expected = {
        "sgd 0": "complete",
        "lpsgdm 0": "diverged",
        "adamw 0": "interrupted",
        "sgd 1": "queued",
        "lpsgdm 1": "failed",
        "adamw 1": "queued",
    }
    assert states(folder) == expected
    with held(folder / "runs/adamw/seed-0"):
        assert states(folder) == {**expected, "adamw 0": "running"}
    write_heartbeat(folder / "runs/adamw/seed-0", "node7")  # whose lock is not seen here
    assert states(folder)["adamw 0"] == "running"
    long_ago = time.time() - 1000
    os.utime(folder / "runs/adamw/seed-0/.alive", (long_ago, long_ago))
    assert states(folder)["adamw 0"] == "interrupted"


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", str(folder)]) == 0
    shown = capsys.readouterr().out
    rows = {line.partition(" seed ")[0].strip() + line.partition(" seed ")[2][:1]: line.split()
            for line in shown.splitlines() if " seed " in line}  # fmt: skip
    assert rows["sgd0"][3:5] == ["done", "2/2"]
    assert rows["adamw0"][3:5] == ["interrupted", "1/2"]
    assert rows["sgd1"][3:] == ["queued"]
    assert rows["lpsgdm1"][3] == "failed"
    assert "the disk is full" in shown
    assert "the training loss became" in shown
    assert "6 runs: 1 done, 1 diverged, 1 failed, 1 interrupted, 2 queued" in shown
    assert "Nothing is running now. To resume:\n  lpsgd " in shown
    with held(folder / "runs/adamw/seed-0"):
        assert cli.main(["status", str(folder)]) == 0
    assert "Nothing is running" not in capsys.readouterr().out


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(folder / "runs/adamw/seed-0"):
        assert cli.main(["status", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["counts"] == {
        "complete": 1, "diverged": 1, "failed": 1, "running": 1, "queued": 2,
    }  # fmt: skip
    (running,) = [run for run in found["runs"] if run["state"] == "running"]
    assert (running["epoch"], running["epochs"]) == (1, 2)
    assert 0 <= running["seconds_left"] <= running["seconds_per_epoch"]
    # what is left of this one, and two queued ones of two epochs each
    assert found["seconds_left"] > running["seconds_left"]


def test_time_left_follows_from_the_epochs(folder: Path) -> None:
    run = folder / "runs/adamw/seed-0"
    lines = [json.dumps({"epoch": e, "seconds": 10 * e, "test_top1": 50}) for e in range(1, 8)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    plan = json.loads((folder / "comparison.json").read_text())
    (folder / "comparison.json").write_text(json.dumps({**plan, "epochs": 10}))
    now = time.time()
    os.utime(run / "metrics.jsonl", (now - 20, now - 20))
    with held(run):
        found = {f"{r.label} {r.seed}": r for r in read_status(folder).runs}["adamw 0"]
    assert found.seconds_per_epoch == 50, "of the last five epochs"
    assert found.seconds_left == pytest.approx(3 * 50 - 20, abs=5)


def test_one_run_and_any_tree_of_runs(folder: Path, tmp_path: Path) -> None:
    assert states(folder / "runs/sgd/seed-0") == {"sgd 0": "complete"}
    assert states(folder / "runs/adamw") == {"adamw 0": "interrupted"}
    assert len(states(tmp_path)) == 6
    with pytest.raises(UserError, match="is not a folder"):
        read_status(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run in"):
        read_status(tmp_path / "empty")


def test_a_plan_names_runs_elsewhere(folder: Path) -> None:
    """As a reproduction's targets do, which share their runs."""
    recipe = small_recipe("sgd:lr=0.05")
    tasks = [
        Task("SGD", recipe.with_changes(seed=seed), folder / f"runs/sgd/seed-{seed}")
        for seed in (0, 1)
    ]
    write_plan(folder / "table1", tasks)
    assert states(folder / "table1") == {"SGD 0": "complete", "SGD 1": "queued"}


def test_a_run_rests_if_it_came_as_far_as_was_asked(folder: Path) -> None:
    """As the trials of a sweep do; this one has been trained for one epoch of two."""
    where = folder / "runs/adamw/seed-0"
    task = Task("adamw", small_recipe("adamw", epochs=2), where)
    for notes, state in [
        ({}, "interrupted"),
        ({"until_epoch": 2}, "interrupted"),
        ({"until_epoch": 1}, "paused"),
        ({"until_epoch": 1, "state": "pruned"}, "pruned"),
    ]:
        write_plan(folder / "sweep", [task], {where: notes})
        assert states(folder / "sweep") == {"adamw 0": state}
        with held(where):
            assert states(folder / "sweep") == {"adamw 0": "running"}


def test_a_sweep_that_has_just_begun(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"command": "lpsgd sweep"}')
    assert read_status(tmp_path) == Status([], ["lpsgd sweep"])


def test_time_left_is_that_of_the_epochs_asked_for() -> None:
    running = RunProgress("sgd", 0, "mlp", 9, "a", "running", seconds_left=10.0)
    running = replace(running, seconds_per_epoch=10.0)
    queued = RunProgress("sgd", 1, "mlp", 9, "b", until_epoch=3)
    assert time_left([running, queued]) == 10 + 3 * 10
    assert time_left([running, replace(queued, until_epoch=None)]) == 10 + 9 * 10


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", "config.json': Expecting"),
        ("result.json", "{}", "result.json is not the result of a run"),
        ("result.json", '{"state": "zzz", "epochs": 2}', "state='zzz'"),
        ("metrics.jsonl", f'{{"seconds": {10**400}}}\n', "metrics.jsonl', line 1: int too large"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_failed_run(
    folder: Path, name: str, text: str, message: str
) -> None:
    (folder / "runs/sgd/seed-0" / name).write_text(text)
    assert states(folder)["sgd 0"] == "failed"
    reasons = [run.reason or "" for run in read_status(folder).runs]
    assert any(message in reason for reason in reasons)


@pytest.mark.parametrize(
    "plan",
    [
        '{"runs": null}',
        '{"runs": ["a"]}',
        '{"runs": [{"label": "sgd"}]}',
        '{"runs": [{"label": "a", "seed": 0, "network": "n", "epochs": "x", "folder": "f"}]}',
        '{"runs": [{"label": "a", "seed": 0, "network": "n", "epochs": 1, "folder": 3}]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_plan_is_named(tmp_path: Path, plan: str) -> None:
    (tmp_path / "plan.json").write_text(plan)
    with pytest.raises(UserError, match=r"plan\.json"):
        read_status(tmp_path)


def test_the_reason_of_a_failure_stays_until_the_run_is_started_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    optimizers = f"{kill_own_process.__module__}:kill_own_process"
    assert run_compare(out, optimizers, "--seeds", "1", "--jobs", "1") == 1
    (run,) = read_status(out).runs
    assert run.state == "failed"
    assert run.reason is not None
    assert "was killed by SIGKILL" in run.reason
    folder = Path(run.folder)
    config = {**small_recipe().model_dump(), "optimizer": optimizers, "settings": {}}
    with open_run(folder, small_recipe().with_changes(**config)):
        assert not (folder / "error.json").exists()


def test_looking_disturbs_nothing(tmp_path: Path) -> None:
    """A run that begins while somebody looks is not told that its folder is in use."""
    recipe = small_recipe()
    (tmp_path / "run").mkdir()
    handle = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # as `is_held` does, but for longer
    looked = threading.Timer(0.15, os.close, [handle])
    looked.start()
    with open_run(tmp_path / "run", recipe):
        assert is_held(tmp_path / "run")
    looked.join()
    (tmp_path / "run").mkdir(exist_ok=True)
    in_use = pytest.raises(LabError, match="in use by another process")
    with held(tmp_path / "run"), in_use, open_run(tmp_path / "run", recipe):
        pass


def test_it_starts_without_torch(folder: Path) -> None:
    code = (
        "import sys; from lpsgd.lab.cli.app import main; code = main(['status', sys.argv[1]]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True)


def test_watching_ends_when_nothing_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lpsgd.lab.cli import status

    monkeypatch.setattr(status, "_WATCH_SECONDS", 0.05)
    holding = threading.Event()

    def hold() -> None:
        with held(folder / "runs/adamw/seed-0"):
            holding.set()
            time.sleep(0.5)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    assert cli.main(["status", str(folder), "--watch"]) == 0
    thread.join()
    shown = capsys.readouterr()
    assert shown.err.count("1 running") == 1, "said once, because nothing changed"
    assert "1 interrupted" in shown.out


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("metrics.jsonl", "epoch", "nan"),
        ("metrics.jsonl", "epoch", "inf"),
        ("result.json", "reason", -1),
        ("config.json", "model", "[red]x[/blue]"),
    ],
)
def test_odd_values_are_shown_as_they_are(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, key: str, value: Any
) -> None:
    path = folder / "runs/sgd/seed-0" / name
    (folder / "comparison.json").unlink()  # the network is then told by the run itself
    found = json.loads(path.read_text().splitlines()[-1] if key == "epoch" else
                       path.read_text())  # fmt: skip
    path.write_text(json.dumps({**found, key: value}) + "\n")
    assert cli.main(["status", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "sgd seed 0" in shown
    if name != "metrics.jsonl":
        assert str(value) in shown
    assert cli.main(["status", str(folder), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_what_is_missing_of_a_run_that_ended_is_told(folder: Path) -> None:
    path = folder / "runs/sgd/seed-0/metrics.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    found = {f"{run.label} {run.seed}": run for run in read_status(folder).runs}["sgd 0"]
    assert found.reason == "metrics.jsonl was changed: 1 of 2 epochs are there"
