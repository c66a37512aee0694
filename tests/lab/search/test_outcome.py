"""What is concluded from trials: winners, edges, the region of good learning rates."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from rich.console import Console

from lpsgd.lab.plan import Task, resolve
from lpsgd.lab.recipe import read_recipe_file, read_search_note
from lpsgd.lab.report.document import Picture, to_markdown
from lpsgd.lab.report.style import DARK
from lpsgd.lab.search.definition import Sweep
from lpsgd.lab.search.method import WORST, Search
from lpsgd.lab.search.outcome import Outcome, best_by_lr, conclude, good_region, pruned_text
from lpsgd.lab.search.proposals import Ended, Score
from lpsgd.lab.search.report.figures import all_figures, importances
from lpsgd.lab.search.report.page import make_document, write_winners
from lpsgd.lab.search.report.terminal import render_winners
from lpsgd.lab.search.run import read_score
from lpsgd.lab.search.space_file import parse_space

VALUES = {"val_size": 100, "seed": 1000, "epochs": 6, "width": 8}


def ended(number: int, params: dict[str, object], top1: float | None, epochs: int = 6) -> Ended:
    nll = None if top1 is None else 5 - top1 / 20
    score = Score(top1 or 0.0, top1 or 0.0, nll)
    return Ended(number, params, "complete" if epochs == 6 else "pruned", epochs, score)


def outcome(tables: dict[str, object], trials: Sequence[Sequence[Ended]], out: Path) -> Outcome:
    competitors = parse_space(tables)
    how = Search("grid", "none", "top1", len(trials[0]), 4, 0, 6)
    sweep = Sweep(VALUES, competitors, how, out)
    return conclude(sweep, {c.label: t for c, t in zip(competitors, trials, strict=True)})


def test_the_width_of_the_good_region_by_hand() -> None:
    """Best 90 at 10^-2. Level 89. Below: 90 -> 85 over one decade crosses after 0.2 decades.
    Above: 90 -> 89.5 stays within, then 89.5 -> 79.5 over one decade crosses after 0.05."""
    points = [(1e-4, 50.0), (1e-3, 85.0), (1e-2, 90.0), (1e-1, 89.5), (1.0, 79.5)]
    region = good_region(points)
    assert region is not None
    assert math.isclose(math.log10(region.low), -2.2)
    assert math.isclose(math.log10(region.high), -0.95)
    assert math.isclose(region.decades, 1.25)
    assert region.shown == "1.25"
    assert (region.reaches_lowest, region.reaches_highest) == (False, False)
    wider = good_region(points, lost=10.5)
    assert wider is not None
    assert (wider.high, wider.reaches_highest) == (1.0, True)
    assert wider.shown == f"at least {wider.decades:.2f}"


def test_a_second_hill_does_not_widen_the_region() -> None:
    region = good_region([(0.01, 90.0), (0.1, 40.0), (1.0, 89.9)])
    assert region is not None
    assert math.isclose(math.log10(region.high), -2 + 1 / 50)
    assert region.reaches_lowest


def test_no_region_from_one_rate() -> None:
    assert good_region([(0.1, 90.0)]) is None
    assert good_region([]) is None


def test_the_best_over_other_settings_counts(tmp_path: Path) -> None:
    trials = [
        ended(0, {"lr": 0.1, "momentum": 0.0}, 70.0),
        ended(1, {"lr": 0.1, "momentum": 0.9}, 80.0),
        ended(2, {"lr": 0.01, "momentum": 0.9}, 60.0, epochs=2),
        ended(3, {"lr": 0.01, "momentum": 0.0}, None),
    ]
    found = outcome({"sgd": {"lr": [0.1, 0.01], "momentum": [0.0, 0.9]}}, [trials], tmp_path)
    assert best_by_lr(found.trials)[1] == (0.1, 80.0)
    assert math.isnan(best_by_lr(found.trials)[0][1])  # pruned and diverged
    (winner,) = found.winners
    assert winner.trial.number == 1
    assert (winner.complete, winner.pruned, winner.diverged, winner.epochs) == (2, 1, 1, 20)
    assert winner.edge == "highest"
    assert winner.settings["momentum"] == 0.9


def test_many_rates_are_taken_together(tmp_path: Path) -> None:
    rates = [10 ** (-3 + k / 16) for k in range(32)]
    trials = [ended(k, {"lr": lr}, 50 + (k % 4)) for k, lr in enumerate(rates)]
    space = {"sgd": {"lr": {"low": 1e-3, "high": 0.1, "log": True}}}
    points = best_by_lr(outcome(space, [trials], tmp_path).trials)
    assert len(points) == 8
    assert {top1 for _, top1 in points} == {53.0}


def test_equal_accuracies_are_decided_by_nll_then_order(tmp_path: Path) -> None:
    def trial(number: int, nll: float) -> Ended:
        params = {"lr": [0.1, 0.2, 0.3][number]}
        return Ended(number, params, "complete", 6, Score(80.0, 80.0, nll))

    space = {"sgd": {"lr": [0.1, 0.2, 0.3]}}
    found = outcome(space, [[trial(0, 0.5), trial(1, 0.4), trial(2, 0.4)]], tmp_path)
    assert found.winners[0].trial.number == 1
    assert found.winners[0].edge is None


def test_a_pruned_trial_never_wins(tmp_path: Path) -> None:
    trials = [ended(0, {"lr": 0.1}, 70.0), ended(1, {"lr": 0.2}, 99.0, epochs=2)]
    found = outcome({"sgd": {"lr": [0.1, 0.2]}}, [trials], tmp_path)
    assert found.winners[0].trial.number == 0


@pytest.mark.parametrize("label", ["adamw", "lpsgdm", "sgd"])
def test_the_recipe_says_exactly_what_won(tmp_path: Path, label: str) -> None:
    tables: dict[str, dict[str, object]] = {
        "adamw": {"lr": [0.1, 1e-5], "betas": [[0.9, 0.99], [0.9, 0.95]]},
        "lpsgdm": {"lr": [0.1, 1e-5], "p": [6, 4], "normalize": "rms"},
        "sgd": {"lr": [0.1, 1e-5], "nesterov": [True, False]},
    }
    (competitor,) = parse_space({label: tables[label]})
    params = {name: points[1] for name, points in competitor.grids().items()}
    found = outcome({label: tables[label]}, [[ended(0, params, 70.0)]], tmp_path)
    (path,) = write_winners(found, "lpsgd sweep\n--space x\x01\x7f")
    again = resolve(read_recipe_file(path))
    won = found.sweep.recipe(competitor, found.winners[0].settings)
    assert again == won.with_changes(val_size=0, seed=0)
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert "Validation accuracy 70.00 %" in comments[1]
    assert comments[2] == "# lpsgd sweep --space x??"
    note = "after a search whose best learning rate, 1e-05, is the lowest allowed"
    assert read_search_note(path) == note


def test_importance_finds_the_setting_that_matters(tmp_path: Path) -> None:
    space = {"sgd": {"lr": [0.1, 0.01, 0.001], "momentum": [0.0, 0.5, 0.9]}}
    (competitor,) = parse_space(space)
    points = [{"lr": a, "momentum": b} for a in (0.1, 0.01, 0.001) for b in (0.0, 0.5, 0.9)]
    trials = [
        ended(k, dict(p), 90 + 20 * math.log10(p["lr"]) + p["momentum"])
        for k, p in enumerate(points)
    ]
    found = outcome(space, [trials], tmp_path)
    shares = importances(found, competitor)
    assert list(shares) == ["lr", "momentum"]
    assert shares["lr"] > 0.9
    assert math.isclose(sum(shares.values()), 1)
    same = outcome(space, [[ended(k, dict(p), 50.0) for k, p in enumerate(points)]], tmp_path)
    assert importances(same, competitor) == {}


def test_a_figure_for_each_question_and_none_for_what_was_not_searched(tmp_path: Path) -> None:
    space = {"lpsgdm": {"lr": [0.1, 0.01, 0.001], "p": [3, 4, 6]}, "sgd": {"momentum": [0.0, 0.9]}}
    points = [{"lr": a, "p": b} for a in (0.1, 0.01, 0.001) for b in (3, 4, 6)]
    first = [ended(k, dict(p), 50.0 + 3 * k if k else None) for k, p in enumerate(points)]
    second = [ended(k, {"momentum": 0.9 * (k % 2)}, 60.0 + k) for k in range(9)]
    blocks = all_figures(outcome(space, [first, second], tmp_path))
    names = [block.name for block in blocks]
    pairs = ["accuracy-over-lr", "lr-and-p", "importance", "best-so-far"]
    assert names == [name for name in pairs for _ in range(2)]  # the picture and its numbers
    tables = {block.name: block.rows for block in blocks[1::2]}  # type: ignore[union-attr]
    assert tables["accuracy-over-lr"] == [
        ("lpsgdm", 0.001, 74.0),
        ("lpsgdm", 0.01, 65.0),
        ("lpsgdm", 0.1, 56.0),
    ]
    assert len(tables["lr-and-p"]) == 9
    assert [row[2] for row in tables["best-so-far"]][:3] == [53.0, 56.0, 59.0]
    only = outcome({"sgd": {"momentum": [0.0, 0.9]}}, [second], tmp_path)
    assert {b.name for b in all_figures(only)} == {"best-so-far"}


def test_divergence_alone_is_no_winner(tmp_path: Path) -> None:
    space = {"sgd": {"lr": [1e20, 1e25]}, "lpsgdm": {"lr": [0.1, 0.01], "p": [3, 4]}}
    lost = [ended(0, {"lr": 1e20}, None), ended(1, {"lr": 1e25}, None, epochs=2)]
    won = [ended(0, {"lr": 0.1, "p": 3}, 70.0), ended(1, {"lr": 0.01, "p": 4}, 60.0)]
    found = outcome(space, [lost, won], tmp_path)
    assert [winner.label for winner in found.winners] == ["lpsgdm"]
    assert found.without_winner == ["sgd"]
    assert found.to_json()["without_winner"] == ["sgd"]
    assert [path.name for path in write_winners(found, "lpsgd sweep")] == ["lpsgdm.toml"]
    first = next(b for b in all_figures(found) if isinstance(b, Picture))
    titles = [axis.get_title("left") for axis in first.figure.axes]
    assert titles[0] == "sgd: no winner"
    assert titles[1].startswith("lpsgdm: ")


@pytest.mark.parametrize("weak", [50.0, 4.0])
def test_the_weaker_winner_is_seen(tmp_path: Path, weak: float) -> None:
    space = {"sgd": {"lr": [0.1, 0.01]}, "adamw": {"lr": [0.1, 0.01]}}
    trials = [
        [ended(0, {"lr": 0.1}, best), ended(1, {"lr": 0.01}, best - 3)] for best in (76.7, weak)
    ]
    found = outcome(space, trials, tmp_path)
    pictures = [b for b in all_figures(found) if isinstance(b, Picture)]
    assert [p.name for p in pictures] == ["accuracy-over-lr", "best-so-far"]
    for axis in (axis for picture in pictures for axis in picture.figure.axes):
        low, high = axis.get_ylim()
        assert low <= weak < 76.7 <= high


def test_pruned_trials_neither_narrow_nor_widen_the_good_region(tmp_path: Path) -> None:
    """Complete: 90 at 0.01 and 89.5 at 0.1. The score of 30 at 0.1 is that of an early epoch of
    another setting; the 89.9 at 1 too, so that nothing is known beyond 0.1; 0.001 diverges."""
    tried = [(0.01, 0.0, 90.0, 6), (0.1, 0.0, 89.5, 6), (0.1, 0.9, 30.0, 2), (1.0, 0.0, 89.9, 2)]
    tried += [(0.001, 0.0, None, 2)]
    trials = [
        ended(k, {"lr": lr, "momentum": m}, top1, epochs=epochs)
        for k, (lr, m, top1, epochs) in enumerate(tried)
    ]
    space = {"sgd": {"lr": [0.001, 0.01, 0.1, 1.0], "momentum": [0.0, 0.9]}}
    found = outcome(space, [trials], tmp_path)
    region = found.winners[0].region
    assert region is not None
    assert region.high == 0.1
    assert math.isclose(math.log10(region.low), -2 - 1 / 90)
    assert region.shown == f"at least {1 + 1 / 90:.2f}"
    assert "lower bound" in pruned_text(found)
    picture, table = all_figures(found)[:2]
    assert "lower bound" in picture.caption
    assert [row[1] for row in table.rows] == [0.001, 0.01, 0.1]  # type: ignore[union-attr]
    alone = outcome(space, [[trials[0], trials[3]]], tmp_path)
    assert alone.winners[0].region is None
    whole = outcome(space, [trials[:2]], tmp_path)
    assert pruned_text(whole) == ""


def test_the_legend_fits_and_ticks_are_short(tmp_path: Path) -> None:
    space = {label: {"lr": [0.1, 0.01], "p": [9.91615554166, 3]} for label in ("lpsgd", "lpsgdm")}
    scores = [(0.1, 3, 80.0, 6), (0.01, 3, 60.0, 2), (0.1, 9.91615554166, None, 6)]
    scores += [(0.01, 9.91615554166, 5.0, 6)]
    trials = [ended(k, {"lr": a, "p": b}, c, epochs=d) for k, (a, b, c, d) in enumerate(scores)]
    found = outcome(space, [trials, trials], tmp_path)
    pictures = {b.name: b for b in all_figures(found) if isinstance(b, Picture)}
    for figure in (p.figure for p in pictures.values()):
        figure.draw_without_rendering()
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    (legend,) = pictures["accuracy-over-lr"].figure.legends
    assert len(legend.get_texts()) == 5
    cells = pictures["lr-and-p"].figure.axes[0].texts
    assert not {to_hex(cell.get_color()) for cell in cells} & set(DARK)  # they stay on a dark page
    ticks = pictures["lr-and-p"].figure.axes[0].get_yticklabels()
    assert [tick.get_text() for tick in ticks] == ["3", "9.92"]


@pytest.mark.parametrize("metric", ["top1", "nll"])
@pytest.mark.parametrize("nll", ["nan", "inf"])
def test_weights_that_are_not_numbers_have_the_worst_score(
    tmp_path: Path, metric: str, nll: str
) -> None:
    """They have an accuracy, which is that of chance and may be above that of a slow start."""
    task = Task("sgd", resolve({"optimizer": "sgd"}), tmp_path)
    rows = [{"epoch": 1, "val_top1": 9.0, "val_nll": 2.3}, {"epoch": 2, "val_top1": 10.0}]
    rows[1]["val_nll"] = nll  # type: ignore[assignment]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = Search("grid", "halving", metric, 4, 4, 0, 6)
    assert read_score(task, 2, how) is None, "the process was killed before it could say so"
    (tmp_path / "result.json").write_text(json.dumps({"state": "diverged", "epochs": 1}))
    assert read_score(task, 1, how) == Score({"top1": 9.0, "nll": 2.3}[metric], 9.0, 2.3)
    assert read_score(task, 2, how) == Score(WORST[metric], 0.0, None)


def test_a_search_that_covered_little_says_so(tmp_path: Path) -> None:
    space = {"sgd": {"lr": [0.01, 0.1, 1.0], "momentum": [0.0, 0.9], "weight_decay": [0.0, 0.1]}}
    middle = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}
    lowest = {**middle, "lr": 0.01}
    few = outcome(space, [[ended(0, middle, 90.0), ended(1, lowest, 80.0)]], tmp_path)
    assert few.winners[0].note == "after a search that tried 2 of 12 combinations"
    enough = [ended(k, {**lowest, "weight_decay": k % 2 / 10}, 80.0) for k in (1, 2)]
    wide = outcome(space, [[ended(0, middle, 90.0), *enough]], tmp_path)
    assert wide.winners[0].note == ""
    both = outcome(space, [[ended(0, lowest, 90.0)]], tmp_path)
    assert both.winners[0].note == (
        "after a search whose best learning rate, 0.01, is the lowest allowed and that tried 1 of "
        "12 combinations"
    )
    stream = io.StringIO()
    render_winners(both, Console(file=stream, width=200))
    said = next(line for line in stream.getvalue().splitlines() if line.startswith("sgd: "))
    assert said.endswith(f"weight_decay=0 ({both.winners[0].note})")
    assert f"({both.winners[0].note})" in to_markdown(make_document(both, "lpsgd sweep"))
    # ranges without points have no number of combinations
    ranged = {"sgd": {"lr": {"low": 0.01, "high": 1.0, "log": True}}}
    assert outcome(ranged, [[ended(0, {"lr": 0.1}, 90.0)]], tmp_path).winners[0].note == ""
