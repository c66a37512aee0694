"""Planning: from what was asked for to the list of runs, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lpsgd.lab.analysis.comparison import analyse
from lpsgd.lab.plan import plan_comparison, plan_recipes
from lpsgd.lab.store.manifest import write_comparison
from lpsgd.lab.store.run_record import load_comparison
from tests.lab.made_up_runs import history, write_run


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


def test_what_a_search_left_open_is_in_the_sentence_of_the_verdict(tmp_path: Path) -> None:
    """From the recipe that a sweep wrote to the words of the report, and to its JSON."""
    note = "after a search whose best learning rate, 3, is the highest allowed"
    (tmp_path / "adamw.toml").write_text('optimizer = "adamw"\n')
    (tmp_path / "sgd.toml").write_text(f'search_note = "{note}"\noptimizer = "sgd"\n')
    out = tmp_path / "out"
    folder, tasks = plan_recipes([tmp_path], {}, range(5), out)
    write_comparison(folder, tasks, ["adamw", "sgd"], "adamw")
    for label, shift in (("adamw", 0.0), ("sgd", 3.0)):
        for seed in range(5):
            rows = history(90.0 + shift + shift * seed / 40, seed=seed)
            write_run(out / "runs" / label / f"seed-{seed}", label, seed, rows)
    analysis = analyse(load_comparison(out))
    assert analysis.verdict[0] == f"Better than adamw on test accuracy: sgd ({note})."
    assert analysis.verdict[1].startswith(f"Highest mean test accuracy: sgd ({note}) (93.")
    assert analysis.details[0].startswith(f"sgd ({note}) is better than adamw on test accuracy")
    assert analysis.to_json()["optimizers"][1]["search_note"] == note
    other = analyse(load_comparison(out), "sgd").verdict[0]
    assert other == f"Worse than sgd ({note}) on test accuracy: adamw."
