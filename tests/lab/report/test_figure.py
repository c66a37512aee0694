"""The figure of a comparison: what it draws, and that the page shows the same."""

from __future__ import annotations

import json
import re

import pytest

from lpsgd.lab.cli import app as cli
from lpsgd.lab.report import figure
from lpsgd.lab.store.run_record import load_comparison
from tests.lab.made_up_runs import history, write_comparison, write_run


@pytest.fixture
def folder(tmp_path):
    """Three complete runs that end at 90, 92 and 94 and one that diverged after two epochs."""
    folder = write_comparison(tmp_path / "c", {"sgd": [90.0, 92.0, 94.0]})
    rows = history(20.0, seed=3)[:2]
    write_run(folder / "runs/sgd/seed-3", "sgd", 3, rows, state="diverged")
    plan = json.loads((folder / "comparison.json").read_text())
    (folder / "comparison.json").write_text(json.dumps({**plan, "seeds": [0, 1, 2, 3]}))
    return folder


def test_page_and_figure_draw_the_same_curve(folder, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        figure, "save_figure", lambda made, stem, **how: drawn.append(made) or [stem]
    )
    assert cli.main(["report", str(folder), "--figure"]) == 0
    page = (folder / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    (optimizer,) = data["optimizers"]
    rows = [
        [row["test_top1"] for row in history(v, seed=s)] for s, v in enumerate((90.0, 92.0, 94.0))
    ]
    expected = [sum(values) / 3 for values in zip(*rows, strict=True)]
    for axes, metric in zip(drawn[0].axes, ("train_nll", "test_top1"), strict=True):
        line = optimizer["lines"][metric]
        mean = next(drawn for drawn in axes.lines if drawn.get_label() == "sgd")
        assert list(mean.get_xdata()) == line["epoch"] == [1, 2, 3, 4, 5]
        assert list(mean.get_ydata()) == pytest.approx(line["mean"], rel=1e-5)
        (band,) = axes.collections
        edges = band.get_paths()[0].vertices
        for place, epoch in enumerate(line["epoch"]):
            at = {round(float(y), 9) for x, y in edges if x == epoch}
            assert (min(at), max(at)) == pytest.approx(
                (line["min"][place], line["max"][place]), rel=1e-5
            )
    assert list(mean.get_ydata()) == pytest.approx(expected)


def test_csv_holds_the_mean_and_the_diverged_run_of_its_own(folder):
    groups = {"sgd": list(load_comparison(folder).runs)}
    rows = list(figure.curve_rows("a panel", groups, "test_top1"))
    assert [row[1:3] for row in rows] == [
        *(("sgd", epoch) for epoch in (1, 2, 3, 4, 5)),
        *(("sgd, seed 3 (diverged)", epoch) for epoch in (1, 2)),
    ]
    assert rows[4] == ("a panel", "sgd", 5, pytest.approx(92), 90, 94, 3)
    apart = history(20.0, seed=3)[1]["test_top1"]
    assert rows[-1] == ("a panel", "sgd, seed 3 (diverged)", 2, apart, apart, apart, 1)
