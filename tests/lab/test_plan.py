"""Planning: from what was asked for to the list of runs, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lpsgd.lab.plan import plan_comparison, plan_recipes


def test_planning_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "sgd.toml"
    recipe.write_text('optimizer = "sgd"\n')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out in (None, Path("out")):
        folder, tasks = plan_comparison({"width": 8}, ["sgd", "lpsgdm"], range(2), out)
        assert [task.label for task in tasks] == ["sgd", "lpsgdm"] * 2
        assert all(task.folder.is_relative_to(folder) for task in tasks)
        assert len(plan_recipes([recipe], {}, range(3), out)[1]) == 3
    assert not [*Path().iterdir()]
