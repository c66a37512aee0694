"""``lpsgd sweep`` from the command line, with made-up trials and with real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lpsgd.lab.cli import app as cli
from lpsgd.lab.events import RunEvent, StartEvent
from lpsgd.lab.store.status import read_status
from tests.lab.small_runs import assert_same_run, small_recipe

from .fake_training import studies

SPACE = """
[sgd]
lr = { low = 1e-3, high = 1.0, log = true, points = 7 }
momentum = [0.0, 0.9]
[lpsgdm]
lr = { low = 1e-3, high = 0.5, log = true, points = 7 }
p = [3, 6]
"""
SMALL = ["--epochs", "9", "--width", "8", "--train-size", "128", "--test-size", "64"]


@pytest.fixture
def space(tmp_path: Path) -> str:
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return str(path)


def sweep(space: str, out: Path, *others: str) -> int:
    return cli.main(["sweep", "--space", space, "--out", str(out), *SMALL, *others])


def outcome(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "outcome.json").read_text())
    del found["folder"]
    return found


def trained(log: Path) -> list[tuple[str, int, int]]:
    """(trial, from epoch, to epoch) of every training."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return [("/".join(f.split("/")[-3:]), int(a), int(b)) for _, f, a, b in lines]


def test_what_a_sweep_leaves(
    space: str, tmp_path: Path, fake_trials: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert sweep(space, out, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    found = outcome(out)
    assert printed == {**found, "folder": str(out)}
    assert [(w["label"], w["trials"]) for w in found["winners"]] == [("sgd", 14), ("lpsgdm", 14)]
    for winner in found["winners"]:
        mine = [t for t in found["trials"] if t["label"] == winner["label"]]
        assert winner["val_top1"] == max(t["top1"] for t in mine)
        assert winner["good_region"]["points"] == 1.0
        assert (out / winner["recipe"]).is_file()
    for name in ("accuracy-over-lr", "lr-and-p", "importance", "best-so-far"):
        for suffix in ("svg", "png", "csv"):
            assert (out / f"report/{name}.{suffix}").stat().st_size > 100
    page = (out / "index.html").read_text()
    assert "The test set was not used" in page
    assert page.count("data:image/svg+xml;base64,") == 4
    # the study can be opened with optuna's own tools
    name = json.loads((out / "sweep.json").read_text())["definition"]["recipe"]["dataset"]
    kept = studies(f"sqlite:///{out}/trials.db")
    assert {s.study_name.split("/")[1] for s in kept} == {"sgd", "lpsgdm"}
    assert all(s.study_name.startswith(f"sweep-{name}-mlp-") for s in kept)
    for study in kept:
        label = study.study_name.split("/")[1]
        winner = next(w for w in found["winners"] if w["label"] == label)
        assert study.best_value == winner["val_top1"]
        assert study.best_trial.user_attrs["folder"] == f"trials/{label}/{winner['trial']:04d}"
        assert {t.state.name for t in study.trials} == {"COMPLETE"}
    # a second call trains nothing and says the same
    before = fake_trials.read_text()
    assert sweep(space, out) == 0
    text = capsys.readouterr().out
    assert fake_trials.read_text() == before
    assert "lpsgd compare --recipes" in text
    assert "the test set was not used" in " ".join(text.split())
    assert outcome(out) == found


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
@pytest.mark.parametrize("pruner", ["none", "halving", "median"])
def test_jobs_do_not_change_the_result_and_epochs_are_trained_once(
    space: str, tmp_path: Path, fake: Path, sampler: str, pruner: str
) -> None:
    options = ["--sampler", sampler, "--pruner", pruner, "--trials", "8"]
    assert sweep(space, tmp_path / "one", *options, "--jobs", "1") == 0
    done = trained(fake)
    assert sweep(space, tmp_path / "two", *options, "--jobs", "3") == 0
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")
    # every training goes on where the one before it ended
    reached: dict[str, int] = {}
    for trial, start, stop in done:
        assert start == reached.get(trial, 0)
        reached[trial] = stop
    found = outcome(tmp_path / "one")
    assert sum(reached.values()) == sum(w["epochs"] for w in found["winners"])
    if pruner != "none":
        assert sum(reached.values()) < 2 * 8 * 9


def test_the_mean_over_seeds_counts(space: str, tmp_path: Path, fake: Path) -> None:
    assert sweep(space, tmp_path / "out", "--trials", "4", "--seeds", "3") == 0
    found = outcome(tmp_path / "out")
    assert len(trained(fake)) == 2 * 4 * 3
    assert [w["epochs"] for w in found["winners"]] == [4 * 3 * 9] * 2
    for trial in found["trials"]:
        paths = sorted((tmp_path / "out" / trial["folder"]).glob("seed-*/metrics.jsonl"))
        assert [p.parent.name for p in paths] == ["seed-1000", "seed-1001", "seed-1002"]
        last = [json.loads(p.read_text().splitlines()[-1])["val_top1"] for p in paths]
        assert len(set(last)) == 3
        assert trial["top1"] == pytest.approx(sum(last) / 3, rel=1e-12)


def test_test_scores_change_nothing(
    space: str, tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for poison in ("1", "0.2"):
        monkeypatch.setenv("FAKE_POISON", poison)
        assert sweep(space, tmp_path / poison, "--pruner", "halving") == 0
    assert outcome(tmp_path / "1") == outcome(tmp_path / "0.2")
    written = (tmp_path / "1/outcome.json").read_text() + (tmp_path / "1/index.html").read_text()
    assert "test_top1" not in written


def test_another_definition_in_the_same_folder_is_refused(
    space: str, tmp_path: Path, fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert sweep(space, out, "--trials", "4") == 0
    before = outcome(out)
    for options, difference in [
        (["--trials", "5"], "search trials is 4 there and 5 here"),
        (["--trials", "4", "--seed", "1"], "search seed is 0 there and 1 here"),
        (["--trials", "4", "--batch-size", "64"], "recipe batch_size is 128 there and 64 here"),
        (["--trials", "4", "--optimizers", "sgd"], "space lpsgdm is"),
    ]:
        assert sweep(space, out, *options) == 2
        assert difference in capsys.readouterr().err.replace("\n", " ")
    assert outcome(out) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").touch()
    assert sweep(space, tmp_path / "full") == 2
    assert "holds other files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--val-size", "0"], "--val-size 0"),
        (["--sampler", "gird"], "unknown --sampler 'gird' (did you mean 'grid'"),
        (["--pruner", "x"], "unknown --pruner 'x'"),
        (["--metric", "test"], "unknown --metric 'test'"),
        (["--trials", "15"], "the grid of sgd has 14 combinations"),
        (["--storage", "mysql://me:hunter2@host/db"], "'mysql' is not supported"),
        (["--storage", "hunter2"], "--storage: not an address"),
        (["--storage", "sqlite://"], "an SQLite storage is a file"),
        (["--storage", "postgresql://me:hunter2@x/y@host/db"], "write @ as %40"),
        (["--optimizers", "adam"], "unknown label 'adam'"),
        (["--dataset", "digit"], "did you mean 'digits'"),
    ],
)
def test_wrong_input_leaves_no_folder(
    space: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    assert sweep(space, tmp_path / "out", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "hunter2" not in error
    assert not (tmp_path / "out").exists()


def run_faking(arguments: list[str], log: Path, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tests.lab.search.fake_training", *arguments]
    root = Path(__file__).parents[3]
    return subprocess.run(
        command,
        env={**os.environ, "FAKE_LOG": str(log), **environment},
        cwd=root,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_killed_again_and_again(space: str, tmp_path: Path) -> None:
    """SIGKILL in the middle of a trial, three times: the same trials, the same winner."""
    options = ["sweep", "--space", space, *SMALL, "--trials", "8", "--sampler", "tpe"]
    options += ["--pruner", "halving", "--out"]
    whole, log = tmp_path / "whole", tmp_path / "killed.log"
    assert run_faking([*options, str(whole)], tmp_path / "whole.log").returncode == 0
    out = tmp_path / "killed"
    for kill_after in ("1", "7", "3"):
        done = run_faking([*options, str(out)], log, FAKE_KILL_AFTER=kill_after)
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert run_faking([*options, str(out)], log).returncode == 0
    assert outcome(out) == outcome(whole)
    for study in studies(f"sqlite:///{out}/trials.db"):
        assert len(study.trials) == 8
        assert not [t for t in study.trials if not t.state.is_finished()]
    # what had been trained was not trained again: three trainings were cut short, no more
    extra = len(trained(log)) - len(trained(tmp_path / "whole.log"))
    assert extra <= 3


def test_a_failed_trial_ends_the_sweep_and_is_tried_again(
    space: str,
    tmp_path: Path,
    fake: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from . import fake_training

    def fail_once(tasks: Any, choice: Any, options: Any, problem: Any) -> list[str]:
        fake_training.run_tasks(tasks[:2], choice, options)
        return ["sgd trial 1: the disk is full"]

    monkeypatch.setattr("lpsgd.lab.search.run.run_tasks", fail_once)
    assert sweep(space, tmp_path / "out", "--trials", "4") == 1
    assert "the disk is full" in capsys.readouterr().err
    monkeypatch.setattr("lpsgd.lab.search.run.run_tasks", fake_training.run_tasks)
    assert sweep(space, tmp_path / "out", "--trials", "4") == 0
    assert len(trained(fake)) == 8


def test_trials_of_another_version_are_not_mixed_in(
    space: str, tmp_path: Path, fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if another version of the sampler had asked for other settings."""
    import sqlite3

    assert sweep(space, tmp_path / "out", "--trials", "4", "--sampler", "random") == 0
    with sqlite3.connect(tmp_path / "out/trials.db") as database:
        database.execute("UPDATE trial_params SET param_value = 0.5 WHERE param_name = 'lr'")
    database.close()
    assert sweep(space, tmp_path / "out", "--trials", "4", "--sampler", "random") == 1
    assert "has other settings for sgd trial 0" in capsys.readouterr().err


def test_a_run_without_a_score_is_an_error_and_not_a_loop(
    space: str,
    tmp_path: Path,
    fake: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "lpsgd.lab.search.run.run_tasks", lambda tasks, choice, options, problem: []
    )
    assert sweep(space, tmp_path / "out", "--trials", "4") == 1
    assert "sgd trial 0: no score after epoch 9" in capsys.readouterr().err


def test_no_winner_is_an_error_after_the_page_is_written(
    tmp_path: Path, fake_trials: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.toml"
    space.write_text("[sgd]\nlr = [1e20, 1e25]\n[lpsgdm]\nlr = [0.1, 0.01]\np = [3, 4]\n")
    both, alone = tmp_path / "both", tmp_path / "alone"
    assert sweep(str(space), both) == 1
    shown = capsys.readouterr()
    assert "no winner for sgd: every trial diverged" in shown.err
    printed = " ".join(shown.out.split())
    assert "none of its 2 trials was trained to the end without diverging (2 diverged" in printed
    assert "lpsgd compare --recipes" in printed
    assert [path.name for path in (both / "winners").iterdir()] == ["lpsgdm.toml"]
    assert "sgd: no winner" in (both / "index.html").read_text()
    assert sweep(str(space), alone, "--optimizers", "sgd", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["winners"], found["without_winner"]) == ([], ["sgd"])
    assert (alone / "index.html").is_file()
    assert not (alone / "winners").exists()


def states(out: Path) -> Counter[str]:
    return Counter(run.state for run in read_status(out).runs)


def test_status_of_a_sweep(
    space: str, tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of four trials of each optimizer, of which one or two go on at a rung."""
    from . import fake_training

    out = tmp_path / "out"
    seen: list[Counter[str]] = []

    def look(tasks: Any, choice: Any, options: Any, problem: Any) -> list[str]:
        seen.append(states(out))
        return fake_training.run_tasks(tasks, choice, options)

    monkeypatch.setattr("lpsgd.lab.search.run.run_tasks", look)
    assert sweep(space, out, "--trials", "8", "--pruner", "halving") == 0
    assert seen[0] == {"queued": 8}, "all of the first round, before anything began"
    assert seen[1]["paused"] == 6
    assert seen[1]["interrupted"] == 2, "those that are about to go on"
    second = next(found for found in seen if found["queued"] and found["pruned"])
    assert second == {"queued": 8, "complete": 2, "pruned": 6}
    found = Counter(trial["state"] for trial in outcome(out)["trials"])
    assert states(out) == found
    assert set(found) == {"complete", "pruned"}


def test_status_of_trials_that_another_process_trained(
    space: str, tmp_path: Path, fake: Path
) -> None:
    storage = ["--storage", f"sqlite:///{tmp_path}/shared.db", "--trials", "4"]
    for name in ("a", "b"):
        assert sweep(space, tmp_path / name, *storage) == 0
    assert not (tmp_path / "b/trials").exists()
    assert states(tmp_path / "a") == states(tmp_path / "b") == {"complete": 8}


def test_status_of_a_killed_sweep(
    space: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["sweep", "--space", space, *SMALL, "--trials", "2", "--out", str(out)]
    done = run_faking(options, tmp_path / "log", FAKE_KILL_AFTER="2")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert states(out) == {"complete": 1, "interrupted": 1, "queued": 2}
    assert cli.main(["status", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "Nothing is running now. To resume:" in shown
    assert shown.count(f"--out {out}") == 1


# ---------------------------------------------------------------------- real training

TINY = ["--epochs", "3", "--width", "8", "--train-size", "128", "--test-size", "64"]
TINY_SPACE = "[sgd]\nlr = [0.3, 0.1, 1e30]\n[lpsgdm]\nlr = [0.1, 0.03, 0.01]\n"


@pytest.mark.slow
def test_real_trials_and_their_winners_in_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.toml"
    space.write_text(TINY_SPACE)
    command = ["sweep", "--space", str(space), *TINY, "--pruner", "halving", "--round-size", "3"]
    for jobs in ("1", "2"):
        assert cli.main([*command, "--jobs", jobs, "--out", str(tmp_path / jobs)]) == 0
    assert outcome(tmp_path / "1") == outcome(tmp_path / "2")
    found = outcome(tmp_path / "1")
    assert [w["diverged"] for w in found["winners"]] == [1, 0]
    runs = list((tmp_path / "1/trials").glob("*/*/*/metrics.jsonl"))
    rows = [json.loads(line) for run in runs for line in run.read_text().splitlines()]
    assert len(runs) == 6
    assert all(row["test_top1"] is None and row["test_nll"] is None for row in rows)
    assert all(row["val_nll"] is not None for row in rows)
    capsys.readouterr()
    winners = str(tmp_path / "1/winners")
    arguments = ["compare", "--recipes", winners, "--seeds", "2", "--json"]
    assert cli.main([*arguments, "--out", str(tmp_path / "compared")]) == 0
    compared = json.loads((tmp_path / "compared/comparison.json").read_text())
    assert compared["optimizers"] == ["lpsgdm", "sgd"]
    for winner in found["winners"]:
        folder = tmp_path / f"compared/runs/{winner['label']}/seed-1"
        recipe = json.loads((folder / "config.json").read_text())["recipe"]
        assert recipe["settings"] == winner["settings"]
        assert (recipe["val_size"], recipe["seed"], recipe["train_size"]) == (0, 1, 128)


def test_recipes_of_a_comparison_must_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text('optimizer = "sgd"\nepochs = 3\n[settings]\nlr = 0.1\n')
    (tmp_path / "b.toml").write_text('optimizer = "adamw"\nepochs = 4\n')
    (tmp_path / "c.toml").write_text('optimizer = "os:system"\nepochs = 4\n')
    (tmp_path / "empty").mkdir()

    def compare(*arguments: str) -> str:
        code = cli.main(["compare", *arguments, "--out", str(tmp_path / "out")])
        assert code == 2
        return capsys.readouterr().err.replace("\n", " ")

    both = ["--recipes", str(tmp_path / "a.toml"), "--recipes", str(tmp_path / "b.toml")]
    assert "epochs is 3 in a and 4 in b" in compare(*both)
    assert "cannot be combined with --optimizers" in compare(*both, "--optimizers", "sgd")
    assert "would import and run code" in compare("--recipes", str(tmp_path / "c.toml"))
    assert "no .toml file" in compare("--recipes", str(tmp_path / "empty"))
    assert "No such file" in compare("--recipes", str(tmp_path / "none.toml"))
    assert "two files are named 'a'" in compare(*both, "--recipes", str(tmp_path / "a.toml"))
    assert not (tmp_path / "out").exists()


def test_a_paused_run_goes_on_as_if_it_had_not_paused(tmp_path: Path) -> None:
    from lpsgd.lab.training.loop import train
    from lpsgd.lab.training.options import RunOptions

    recipe = small_recipe("lpsgdm:lr=1e-2", epochs=4, val_size=32, ema=0.9)
    train(recipe, tmp_path / "whole")
    states, starts = [], []

    def listen(event: RunEvent) -> None:
        if isinstance(event, StartEvent):
            starts.append(event.step // 4)  # steps of an epoch

    for epoch in (1, 3, 3, 4):
        options = RunOptions(until_epoch=epoch)
        result = train(recipe, tmp_path / "paused", options=options, listen=listen)
        states.append((result.state, result.epochs))
        assert (tmp_path / "paused/result.json").exists() == (epoch == 4)
    assert states == [("paused", 1), ("paused", 3), ("paused", 3), ("complete", 4)]
    assert starts == [0, 1, 3, 3]  # no epoch is trained twice
    assert_same_run(tmp_path / "whole", tmp_path / "paused")


def test_leaving_the_test_set_alone_changes_no_weight(tmp_path: Path) -> None:
    from lpsgd.lab.training.loop import train
    from lpsgd.lab.training.options import RunOptions

    recipe = small_recipe("sgd:lr=0.1", val_size=32)
    train(recipe, tmp_path / "scored")
    train(recipe, tmp_path / "left", options=RunOptions(score_test=False))
    one, other = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("scored", "left")
    )
    for a, b in zip(one, other, strict=True):
        assert (b["test_nll"], b["test_top1"], b["test_top5"]) == (None, None, None)
        for key in ("val_nll", "val_top1", "train_nll", "update_rms"):
            assert a[key] == b[key]
    bad = small_recipe("sgd:lr=1e30", val_size=32)
    result = train(bad, tmp_path / "bad", options=RunOptions(score_test=False))
    assert result.state == "diverged"
