"""The page of the paper's results is what the committed runs say, and nothing else."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.lab.made_up_runs import history, write_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("publish_paper")


def test_the_page_is_what_the_runs_say(publish: Any, tmp_path: Path) -> None:
    texts, documents = publish.contents()
    made = publish.pages.fill_file(publish.PAGE, texts, "publish_paper.py")
    assert made == publish.PAGE.read_text(encoding="utf-8")
    assert documents
    for name, document in documents.items():
        for path in publish.write_document(document, tmp_path / name):
            if path.suffix in (".csv", ".md"):
                committed = publish.RESULTS / path.relative_to(tmp_path)
                assert committed.read_bytes() == path.read_bytes()


def test_a_target_is_published_once_none_of_its_runs_is_missing(
    publish: Any, tmp_path: Path
) -> None:
    plan = publish.planned("table1", tmp_path)
    scores = {"sgd": 70.0, "adamw": 60.0, "lion": 50.0, "lpsgdm": 65.0}
    *first, last = plan.tasks
    for task in first:
        rows = history(scores[task.recipe.optimizer], seed=task.recipe.seed, epochs=20)
        write_run(task.folder, task.label, task.recipe.seed, rows, epochs=20)
    texts, documents = publish.contents(tmp_path)
    assert "table1" not in documents
    assert texts["table1"].startswith("Not run to its end yet: 1 of 36 runs are missing.")
    write_run(last.folder, last.label, last.recipe.seed, [], state="diverged", epochs=20)
    texts, documents = publish.contents(tmp_path)
    assert "table1" in documents  # what diverged is not missing
    orders = texts["table1"].partition("| the order here |")[2]
    (order,) = re.findall(r"^\| ResNet-18 \| (.*) \| (.*) \|$", orders, re.MULTILINE)
    # the paper's Table 1 at epoch 200, and the scores above
    assert order[0] == "LPSGDM 94.8, AdamW 94.1, Lion 94.0, SGD w/ Momentum 93.2"
    assert order[1] == "SGD w/ Momentum 70.0, LPSGDM 65.0, AdamW 60.0, Lion 50.0"
    links = re.findall(r"\]\(([^)]+)\)", texts["table1"])
    assert links
    assert all(link.startswith("results/paper/table1/") for link in links)
