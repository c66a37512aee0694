"""`lpsgd compare`: planning, executing, resuming, failing, reporting."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lpsgd.lab.cli.app import main
from lpsgd.lab.errors import UserError
from lpsgd.lab.labels import labels
from lpsgd.lab.plan import plan_comparison
from lpsgd.lab.store.run_folder import open_run
from lpsgd.lab.training.loop import train
from tests.lab.comparing import (
    SMALL_VALUES,
    kill_own_process,
    processes_holding,
    run_compare,
    wait_until,
)
from tests.lab.small_runs import assert_same_run, read, small_recipe


def test_the_plan_pairs_seeds_and_shares_everything_else(tmp_path: Path) -> None:
    folder, tasks = plan_comparison(SMALL_VALUES, ["sgd", "lpsgdm:p=4"], range(2), tmp_path / "out")
    assert [(task.label, task.recipe.seed) for task in tasks] == [
        ("sgd", 0),
        ("lpsgdm", 0),
        ("sgd", 1),
        ("lpsgdm", 1),
    ]
    assert tasks[3].folder == folder / "runs/lpsgdm/seed-1"
    own = {"optimizer", "settings", "seed"}
    shared = {json.dumps(t.recipe.model_dump(exclude=own), sort_keys=True) for t in tasks}
    assert len(shared) == 1


def test_the_folder_follows_from_what_is_shared() -> None:
    one, _ = plan_comparison(SMALL_VALUES, ["sgd"], range(2), None)
    other, _ = plan_comparison(SMALL_VALUES, ["adamw", "sgd"], range(5), None)
    longer, _ = plan_comparison({**SMALL_VALUES, "epochs": 3}, ["sgd"], range(2), None)
    assert one == other != longer


def test_labels() -> None:
    assert labels(["sgd", "a.b:Name:lr=1"]) == ["sgd", "Name"]
    assert labels(["sgd:lr=1", "sgd:lr=2"]) == ["sgd-lr=1", "sgd-lr=2"]
    assert labels(["sgd:lr=../../x", "sgd"])[0] == "sgd-lr=..-..-x"
    long = [f"sgd:momentum=0.{'1' * 300}{digit}" for digit in "12"]
    first, second = labels(long)  # a folder's name may have 255 bytes
    assert first != second
    assert first.startswith("sgd-momentum=0.1")
    assert max(len(first), len(second)) <= 120
    with pytest.raises(UserError, match="'sgd' and 'sgd' have one label, 'sgd'"):
        labels(["sgd", "sgd"])


def test_names_of_the_users_own() -> None:
    assert labels(["ours=lpsgdm:lr=1", "lpsgdm", "a.b=sgd"]) == ["ours", "lpsgdm", "a.b"]
    for text in ("a/b=sgd", "=sgd", ".=sgd", "a b=sgd", f"{'x' * 61}=sgd"):
        with pytest.raises(UserError, match=r"the name '.*' of 'sgd': allowed are letters"):
            labels([text])
    for clash in (["a=sgd", "a=adamw"], ["sgd=adamw", "sgd"], ["a=sgd", "A=adamw"]):
        with pytest.raises(UserError, match="have one label"):
            labels(clash)


def test_names_are_used_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal, page, figure, JSON, folders, and when the same command resumes."""
    out = tmp_path / "out"
    command = ["compare", "--optimizers", "slow=sgd:lr=0.01,fast=sgd:lr=0.1,momentum=0.9"]
    size = ["--model", "mlp", "--width", "8", "--epochs", "1", "--train-size", "128"]
    command += [*size, "--seeds", "1", "--jobs", "1", "--reference", "slow", "--out", str(out)]
    assert main(command) == 0
    first = capsys.readouterr()
    assert "[2/2] fast seed 0: done" in first.err
    assert sorted(path.name for path in (out / "runs").iterdir()) == ["fast", "slow"]
    assert json.loads((out / "comparison.json").read_text())["optimizers"] == ["slow", "fast"]
    page = (out / "report.html").read_text()
    assert '<span class="piece">fast</span>' in page
    assert '"label":"fast"' in page
    before = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    assert main([*command, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [(o["label"], o["settings"]["lr"]) for o in again["optimizers"]] == [
        ("slow", 0.01),
        ("fast", 0.1),
    ]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("result.json")} == before
    assert main(["report", str(out), "--figure"]) == 0
    assert "<!-- fast -->" in (out / "curves.svg").read_text()


@pytest.mark.parametrize(
    ("optimizers", "message"),
    [
        ([], "names no optimizer"),
        (["sgd", "lpsgmd"], "did you mean 'lpsgd'"),
        (["sgd", "adamw:beta=0.9"], "unknown setting 'beta'"),
        (["sgd", "adamw:lr=-1"], "Invalid learning rate"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    tmp_path: Path, optimizers: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        plan_comparison(SMALL_VALUES, optimizers, range(2), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with two processes, in which one optimizer diverges."""
    out = tmp_path_factory.mktemp("compared") / "out"
    optimizers = "sgd:lr=0.05,adamw,lpsgdm:lr=1e30"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lpsgd", "compare", "--optimizers", optimizers])
        assert run_compare(out, optimizers, "--seeds", "2", "--jobs", "2") == 0
    return out


def test_every_run_is_what_train_would_have_done(compared: Path, tmp_path: Path) -> None:
    """Nor do the number of processes and what ran before in the same one matter."""
    train(small_recipe("sgd:lr=0.05", seed=1), tmp_path / "sgd")
    assert_same_run(tmp_path / "sgd", compared / "runs/sgd/seed-1")
    train(small_recipe("adamw", seed=0), tmp_path / "adamw")
    assert_same_run(tmp_path / "adamw", compared / "runs/adamw/seed-0")


def test_a_diverged_optimizer_is_shown_as_such(compared: Path) -> None:
    assert read(compared / "runs/lpsgdm/seed-0", "result.json")["state"] == "diverged"
    assert "diverged" in (compared / "report.html").read_text()


def test_the_plan_is_recorded(compared: Path) -> None:
    plan = read(compared, "comparison.json")
    assert plan["optimizers"] == ["sgd", "adamw", "lpsgdm"]
    assert plan["reference"] == "sgd"
    assert plan["seeds"] == [0, 1]
    assert plan["command"] == "lpsgd compare --optimizers sgd:lr=0.05,adamw,lpsgdm:lr=1e30"


def test_what_is_complete_is_not_run_again(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    shutil.copytree(compared, again)
    files = {p: p.stat().st_mtime_ns for p in (again / "runs").rglob("*") if p.is_file()}
    optimizers = "sgd:lr=0.05,adamw,lpsgdm:lr=1e30"
    assert run_compare(again, optimizers, "--seeds", "2", "--json", "--reference", "adamw") == 0
    assert {p: p.stat().st_mtime_ns for p in (again / "runs").rglob("*") if p.is_file()} == files
    analysis = json.loads(capsys.readouterr().out)
    assert analysis["reference"] == "adamw"
    # as it was written, not only as it is called in the table
    given = ("--seeds", "2", "--json", "--reference", "lpsgdm:lr=1e30")
    assert run_compare(again, optimizers, *given) == 0
    assert json.loads(capsys.readouterr().out)["reference"] == "lpsgdm"


def test_a_folder_of_other_recipes_is_left_alone(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read(compared, "comparison.json")
    assert run_compare(compared, "sgd:lr=0.05", "--lr-end", "0.5") == 2
    assert "lr_end is 0.0 there and 0.5 here" in capsys.readouterr().err
    assert read(compared, "comparison.json") == before


def test_wrong_input_for_all_runs_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_compare(tmp_path / "out", "sgd,adamw", "--data", "nonsense=1", "--jobs", "1") == 2
    assert "nonsense" in capsys.readouterr().err
    assert run_compare(tmp_path / "out", "sgd,adamw", "--reference", "lion") == 2
    assert "--reference: unknown label 'lion'" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_does_not_cost_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out/report.html").mkdir(parents=True)  # no file can have the name of a folder
    assert run_compare(tmp_path / "out", "sgd", "--seeds", "1") == 1
    shown = capsys.readouterr()
    assert "Final test accuracy" in shown.out
    assert f"cannot write to {tmp_path / 'out'}: Is a directory" in shown.err
    assert run_compare(tmp_path / "out", "sgd", "--seeds", "1", "--json") == 1
    assert json.loads(capsys.readouterr().out)["optimizers"][0]["complete"] == 1


def test_a_mistake_in_a_recipe_file_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text("epoch = 3")
    assert run_compare(tmp_path / "out", "sgd", "--recipe", str(tmp_path / "recipe.toml")) == 2
    assert f"--recipe {tmp_path / 'recipe.toml'}: unknown key 'epoch'" in capsys.readouterr().err


def test_torchrun_is_for_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert run_compare(tmp_path / "out", "sgd") == 2
    assert "use it with lpsgd train" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_that_another_command_trains_is_not_marked_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small_recipe("sgd:lr=0.05")
    with open_run(tmp_path / "out/runs/sgd/seed-0", recipe) as run:
        run.begin(recipe, "sgd", {})
        assert run_compare(tmp_path / "out", "sgd:lr=0.05", "--seeds", "1") == 1
    assert "in use by another process" in capsys.readouterr().err
    assert not [*tmp_path.rglob("error.json")]


@pytest.mark.slow
def test_a_process_that_dies_takes_only_its_own_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizers = f"sgd:lr=0.05,{kill_own_process.__module__}:kill_own_process"
    code = run_compare(tmp_path / "out", optimizers, "--seeds", "2", "--jobs", "1")
    assert code == 1
    errors = capsys.readouterr().err
    assert "2 runs failed" in errors
    assert "kill_own_process seed 1: the process that trained it was killed by SIGKILL" in errors
    for seed in (0, 1):
        assert read(tmp_path / f"out/runs/sgd/seed-{seed}", "result.json")["state"] == "complete"


class KillOnce(torch.optim.SGD):
    """SGD that sends itself $KILL_SIGNAL after some steps, unless the file $KILL_ONCE is there."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.05, momentum=0.9)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        mark = Path(os.environ["KILL_ONCE"])
        if self.steps == 4 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), int(os.environ["KILL_SIGNAL"]))
        return super().step(closure)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "text"),
    [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGTERM, "stopped")],
)
def test_a_run_whose_process_is_killed_resumes_from_its_checkpoint(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
    text: str,
) -> None:
    monkeypatch.setenv("KILL_SIGNAL", str(int(sent)))
    monkeypatch.setenv("KILL_ONCE", str(tmp_path / "killed"))
    options = ["--seeds", "1", "--jobs", "1", "--save-seconds", "0"]
    assert run_compare(tmp_path / "killed once", f"{__name__}:KillOnce", *options) == 0
    told = capsys.readouterr().err
    assert told.count(text) == 1
    assert "it resumes from its last checkpoint" in told
    assert run_compare(tmp_path / "undisturbed", f"{__name__}:KillOnce", *options) == 0
    assert text not in capsys.readouterr().err
    place = "runs/KillOnce/seed-0"
    assert_same_run(tmp_path / "killed once" / place, tmp_path / "undisturbed" / place)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_comparison_leaves_no_process_and_resumes(
    tmp_path: Path, how: signal.Signals
) -> None:
    """Also when the parent has no chance to tell its workers."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "lpsgd", "compare", "--width", "8", "--optimizers", "sgd"]
    command += ["--epochs", "1000", "--seeds", "2", "--jobs", "2", "--out", str(out)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    runs = [out / f"runs/sgd/seed-{seed}" for seed in (0, 1)]
    wait_until(lambda: all((run / "metrics.jsonl").exists() for run in runs))
    child.send_signal(how)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == (1 if how == signal.SIGINT else -how)
    if how == signal.SIGINT:
        assert "the same command resumes" in errors
        assert "Traceback" not in errors
    wait_until(lambda: all(list((run / "checkpoints").glob("*.pt")) for run in runs))
    wait_until(lambda: not processes_holding(out))


def test_the_demo_gives_its_verdict_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of `make demo`, with fewer epochs and seeds."""
    makefile = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\ndemo:")[2].partition("\n\n")[0].replace("\\\n", " ")
    (words,) = (line.split()[1:] for line in recipe.splitlines() if "/lpsgd compare" in line)
    assert any("lpmuon" in word for word in words), "the study's winner is one of them"
    assert int(words[words.index("--seeds") + 1]) >= 5, "fewer give no verdict"
    shorter = ["--epochs", "1", "--seeds", "2", "--jobs", "1", "--out", str(tmp_path)]
    assert main([*words, *shorter]) == 0
    verdict = capsys.readouterr().out.partition("Verdict")[2]
    assert "Too few seeds for a verdict: 2" in verdict  # the demo itself has enough
    assert f"Page: {tmp_path}" in verdict
