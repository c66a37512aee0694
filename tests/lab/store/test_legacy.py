"""Folders that version 0.1.0 wrote, before the modules moved, still open and resume."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lpsgd.curvature import read_records
from lpsgd.lab.analysis.comparison import analyse
from lpsgd.lab.cli import app as cli
from lpsgd.lab.recipe import make_recipe
from lpsgd.lab.store.run_folder import check_folder
from lpsgd.lab.store.run_record import load_comparison, load_run
from lpsgd.lab.store.status import read_status
from lpsgd.lab.training.loop import train
from lpsgd.peers import factory
from tests.lab.small_runs import assert_same_run, metrics, read

LEGACY = Path(__file__).parent / "legacy"


@pytest.fixture
def legacy(tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(LEGACY, tmp_path / "legacy"))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_comparison_has_its_numbers() -> None:
    comparison = load_comparison(LEGACY / "comparison")
    assert (comparison.labels, comparison.reference) == (("sgd", "lpsgdm"), "sgd")
    assert comparison.command is not None
    assert comparison.command.startswith("lpsgd compare --dataset digits")
    assert [run.state for run in comparison.runs] == ["complete"] * 4
    for result in analyse(comparison).results:
        folders = [LEGACY / "comparison/runs" / result.label / f"seed-{seed}" for seed in (0, 1)]
        last = [lines(folder)[-1]["test_top1"] for folder in folders]
        assert result.final["test_top1"].mean == pytest.approx(sum(last) / 2, rel=1e-12)
        assert result.state_bytes == read(folders[0], "result.json")["state_bytes"]


def test_a_run_is_read_whole() -> None:
    run = load_run(LEGACY / "trained", LEGACY)
    assert (run.label, run.optimizer, run.seed, run.state) == ("lpsgdm", "lpsgdm", 0, "complete")
    assert run.settings["p_schedule"] == "cosine"
    assert (run.setting("batch_size"), run.setting("lr_schedule")) == (128, "cosine")
    assert run.environment is not None
    assert run.environment == read(LEGACY / "trained", "environment.json")
    assert run.result is not None
    assert run.result.model_dump() == read(LEGACY / "trained", "result.json")
    for name in lines(LEGACY / "trained")[0]:
        assert run.values(name) == [line[name] for line in lines(LEGACY / "trained")], name


def test_the_status_of_all() -> None:
    found = read_status(LEGACY)
    states = {os.path.relpath(run.folder, LEGACY): run.state for run in found.runs}
    trials = {f"sweep/trials/{o}/000{n}/seed-1000" for o in ("sgd", "lpsgdm") for n in (0, 1)}
    runs = {f"comparison/runs/{o}/seed-{n}" for o in ("sgd", "lpsgdm") for n in (0, 1)}
    complete = {place for place, state in states.items() if state == "complete"}
    reproduced = "reproduced/runs/digits-resnet18/matched-13b2b6c6/seed-0"
    assert complete == {*trials, *runs, "trained", reproduced}
    assert states["paused"] == "interrupted"
    assert {command.split()[1] for command in found.commands} == {"compare", "reproduce", "sweep"}


def test_a_paused_run_resumes_as_if_it_had_never_stopped(legacy: Path, tmp_path: Path) -> None:
    config = read(legacy / "paused", "config.json")
    recipe, begun = make_recipe(config["recipe"]), metrics(legacy / "paused")
    result = train(recipe, legacy / "paused", label=config["label"])
    assert (result.state, result.epochs) == ("complete", 3)
    assert metrics(legacy / "paused")[: len(begun)] == begun
    train(recipe, tmp_path / "undisturbed", label=config["label"])
    if metrics(tmp_path / "undisturbed")[: len(begun)] != begun:
        pytest.skip("this processor rounds otherwise than the one that wrote the checkpoint")
    assert_same_run(tmp_path / "undisturbed", legacy / "paused")
    assert metrics(legacy / "paused") == metrics(LEGACY / "trained")


def test_a_sweep_is_not_trained_again(legacy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot() -> dict[Path, tuple[int, bytes]]:
        files = [p for p in (legacy / "sweep/trials").rglob("*") if p.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    monkeypatch.chdir(legacy)
    choices = "[sgd]\nlr = [0.01, 0.1]\n\n[lpsgdm]\nlr = [0.01, 0.1]\n"
    (legacy / "space.toml").write_text(choices)
    before, outcome = snapshot(), read(legacy / "sweep", "outcome.json")
    command = read(legacy / "sweep", "sweep.json")["command"]
    assert cli.main(command.split()[1:]) == 0
    assert snapshot() == before
    again = read(legacy / "sweep", "outcome.json")
    was, now = outcome.pop("winners"), again.pop("winners")
    assert again == outcome
    # later versions tell more of a winner
    assert [{key: new[key] for key in old} for old, new in zip(was, now, strict=True)] == was


def test_curvature_is_read(legacy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = read_records(LEGACY / "trained/curvature.jsonl")
    assert [record["epoch"] for record in records] == [0, 1, 2, 3]
    assert cli.main(["spectrum", str(legacy / "trained"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["epoch"] for row in rows] == [record["epoch"] for record in records]


def test_an_optimizer_of_the_paper_that_a_folder_names_is_found() -> None:
    (folder,) = (LEGACY / "reproduced/runs").glob("*/*/*")
    recipe = make_recipe(read(folder, "config.json")["recipe"])
    assert recipe.optimizer == "lpsgd.lab.paper.variants:matched"
    factory.try_out(recipe.optimizer, recipe.settings)
    check_folder(folder, recipe)  # it belongs to this recipe
