"""The research rules of benchmarks/ where they are known rules, and how a screening goes."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lpsgd import LPSGDM, CosineP, LPMuon
from lpsgd.peers import SOAP

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")


@pytest.fixture(autouse=True)
def _benchmarks_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield
    for name in ("rules", "screening", "screening_results", "draw_screening", "scores"):
        sys.modules.pop(name, None)


def walk(optimizer, params, steps=12):
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for p in params:
            p.grad = p.detach() + torch.randn(p.shape, dtype=p.dtype, generator=draw)
        optimizer.step()
    return [p.detach() for p in params]


def starts():
    torch.manual_seed(0)
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((5, 4), (6,))]


def same(make_one, make_other, tolerance=1e-12):
    ours, theirs = starts(), starts()
    for x, y in zip(walk(make_one(ours), ours), walk(make_other(theirs), theirs), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance)


def test_lp_adam_at_infinity_is_adamw():
    rules = importlib.import_module("rules")
    settings = {"lr": 0.02, "weight_decay": 0.1}
    same(
        lambda params: rules.LpAdam(params, p=math.inf, **settings),
        lambda params: torch.optim.AdamW(params, **settings),
    )


def test_lp_in_the_eigenbasis_at_infinity_is_soap():
    rules = importlib.import_module("rules")
    settings = {"lr": 0.02, "weight_decay": 0.1}
    same(
        lambda params: rules.EigenLp(params, p=math.inf, **settings),
        lambda params: SOAP(params, **settings),
    )


def test_a_running_scale_of_one_step_is_lpsgdm_rms():
    """With a single step the running mean is that of the step; LPSGDM's momentum has its bias."""
    rules = importlib.import_module("rules")
    ours, theirs = starts(), starts()
    one = walk(rules.RunningScale(ours, lr=0.1, p=4, total_steps=10), ours, steps=1)
    rms = LPSGDM(theirs, lr=0.02, p=CosineP(4, total_steps=10), normalize="rms", eps=1e-30)
    other = walk(rms, theirs, steps=1)
    for x, y in zip(one, other, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-9)


def test_an_annealed_muon_with_equal_ends_has_that_exponent():
    rules = importlib.import_module("rules")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = rules.annealed_muon(model, total_steps=5, alpha_start=0.25, alpha_end=0.25)
    assert isinstance(optimizer, LPMuon)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["p"] == pytest.approx(5.0)


def rows_of(screening, values, lr):
    made = [
        screening.Row("t", "c", "val", lr * 2**k, 1000, top1, None if top1 is None else 1.0, "x")
        for k, top1 in enumerate(values)
    ]
    asked = {"t": {"metric": "top1"}}, {"c": {"spec": "sgd", "lr": lr}}
    return screening.Screening(*asked, {row.key: row for row in made})


def test_a_best_rate_at_an_edge_asks_for_the_next_one():
    screening = importlib.import_module("screening")
    inner = rows_of(screening, [1, 2, 3, 4, 3, 2], 0.1)
    assert inner.wanted_rates("t", "c") == []
    assert inner.best_rate("t", "c") == pytest.approx(0.8)
    assert rows_of(screening, [1, 2, 3, 4, 5, 6], 0.1).wanted_rates("t", "c") == [
        pytest.approx(6.4)
    ]
    assert rows_of(screening, [6, 5, 4, 3, 2, None], 0.1).wanted_rates("t", "c") == [0.05]
    assert len(rows_of(screening, [1, 2], 0.1).wanted_rates("t", "c")) == 4


def test_rows_survive_their_file(tmp_path):
    screening = importlib.import_module("screening")
    rows = list(rows_of(screening, [1.25, None], 0.1).rows.values())
    screening.write_rows(tmp_path / "runs.csv", rows)
    assert screening.read_rows(tmp_path / "runs.csv") == sorted(rows, key=lambda row: row.key)


def test_every_candidate_can_be_planned(tmp_path, monkeypatch):
    screening = importlib.import_module("screening")
    found = screening.read_screening(Path(BENCHMARKS) / "screening.toml", tmp_path / "none.csv")
    monkeypatch.setattr("lpsgd.lab.plan.final_checkpoint", lambda place: place)  # trained before
    for task in found.tasks:
        for name in found.names(task):
            planned = screening.plan(found, task, name, "val", 0.01, 1000, tmp_path)
            assert planned.recipe.settings["lr"] == 0.01


def test_the_page_and_its_numbers_are_those_of_the_rows(monkeypatch):
    """Page and CSV are what the script makes of runs.csv, byte for byte."""
    monkeypatch.syspath_prepend(str(Path(BENCHMARKS).parent / "scripts"))
    draw = importlib.import_module("draw_screening")
    screening = draw.read_screening(draw.TASKS, draw.RESULTS)
    tasks = draw.finished(screening)
    assert tasks
    assert draw.RESULTS.with_name("summary.csv").read_text() == draw.as_csv(screening, tasks)
    for name, rules in draw.GAINS.items():
        text = draw.gains_csv(draw.gains_over_muon(screening, tasks, rules))
        assert draw.RESULTS.with_name(f"{name}.csv").read_text() == text
    page = draw.PAGE.read_text(encoding="utf-8")
    made = draw.tables(screening, tasks)
    assert draw.pages.fill_file(draw.PAGE, made, "draw_screening.py") == page


def test_the_good_region_ends_where_more_than_a_point_is_lost(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(BENCHMARKS).parent / "scripts"))
    draw = importlib.import_module("screening_results")
    screening = importlib.import_module("screening")
    trials = rows_of(screening, [1, 9.2, 10, 9.1, 8.9, 9.9], 0.1).trials("t", "c")
    assert draw.good_rates(trials, "top1") == (pytest.approx(4.0), False)
    edge = rows_of(screening, [10, 9.5, 3], 0.1).trials("t", "c")
    assert draw.good_rates(edge, "top1") == (pytest.approx(2.0), True)


def test_an_exponent_is_held_against_infinity_by_the_same_seeds(monkeypatch):
    """By hand: gains of 1, 2, 3 have mean 2 and t = 2 / (1 / sqrt 3); a lower NLL is a gain."""
    monkeypatch.syspath_prepend(str(Path(BENCHMARKS).parent / "scripts"))
    results = importlib.import_module("screening_results")
    screening = importlib.import_module("screening")

    def row(task, rule, seed, top1, nll):
        return screening.Row(task, rule, "test", 0.1, seed, top1, nll, "x")

    rows = []
    for seed, (plain, other) in enumerate([(60, 61), (50, 52), (40, 43)]):
        rows += [row("a", "Muon", seed, plain, 1.0), row("a", "Muon, p = 5", seed, other, 1.0)]
        rows += [row("b", "Muon", seed, 5.0, other), row("b", "Muon, p = 5", seed, 5.0, plain)]
    rows += [replace(row, split="val", seed=1000) for row in rows if row.seed == 0]
    rows.append(row("a", "Muon", 0, 10.0, 9.0))  # of a rate that did not win
    rows[-1] = replace(rows[-1], lr=0.4)
    tasks = {"a": {"metric": "top1"}, "b": {"metric": "nll"}}
    found = screening.Screening(tasks, {}, {row.key: row for row in rows})
    one, other = results.gains_over_muon(found, tasks, results.EXPONENTS)
    assert (one.task, other.task, one.candidate) == ("a", "b", "Muon, p = 5")
    for gain in (one, other):
        assert gain.paired.difference == pytest.approx(2.0)
        assert gain.paired.t == pytest.approx(2 * math.sqrt(3))
        assert gain.p_holm == pytest.approx(2 * gain.paired.p)  # two tests


def test_a_task_is_finished_when_every_candidate_has_its_seeds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(BENCHMARKS).parent / "scripts"))
    results = importlib.import_module("screening_results")
    screening = importlib.import_module("screening")
    whole = rows_of(screening, [1, 3, 2], 0.1)
    for seed in screening.SEEDS:
        assert results.finished(whole) == []
        row = screening.Row("t", "c", "test", 0.2, seed, None if seed else 60.0, None, "x")
        whole.rows[row.key] = row
    assert results.finished(whole) == ["t"]  # those that diverged are not missing
    assert results.fresh_seeds(whole, "t")["c"] == dict.fromkeys(screening.SEEDS, 60.0)  # the worst


def test_the_advice_on_fine_tuning_says_what_the_summary_says():
    import csv

    root = Path(BENCHMARKS).parent
    with (root / "docs/results/screening/summary.csv").open(encoding="utf-8") as file:
        rows = {(row["task"], row["rule"]): row for row in csv.DictReader(file)}
    lead = float(rows["finetune", "LPMuon (cautious, rows)"]["difference"])
    advice = " ".join((root / "docs/choosing.md").read_text(encoding="utf-8").split())
    assert f"In fine-tuning the lead of LPMuon was {lead:.1f} points" in advice


def test_the_advice_on_p_is_what_the_null_test_says():
    """ "No other exponent was certainly better on any task." """
    import csv

    root = Path(BENCHMARKS).parent
    with (root / "docs/results/screening/exponents.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    certain = [row for row in rows if float(row["p_holm"] or 1) < 0.05]
    assert certain
    assert all(float(row["gain"]) < 0 for row in certain)
    tasks = {row["task"] for row in rows}
    number = {5: "five", 6: "six", 7: "seven"}[len(tasks)]
    advice = (root / "docs/choosing.md").read_text(encoding="utf-8")
    assert f"on any of {number} tasks" in " ".join(advice.split())
