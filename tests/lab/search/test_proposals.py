"""Which trials are asked for, as a function of scores alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import optuna
import pytest

from lpsgd.lab.errors import UserError
from lpsgd.lab.search.method import WORST, Search, count_trials
from lpsgd.lab.search.proposals import Ended, Score, TrialRequest, search
from lpsgd.lab.search.space import Competitor
from lpsgd.lab.search.space_file import parse_space, read_space

SPACE = {
    "sgd": {
        "lr": {"low": 1e-4, "high": 1.0, "log": True, "points": 9},
        "momentum": [0.0, 0.9],
        "weight_decay": [0.0, 1e-3],
    }
}
SGD = parse_space(SPACE)[0]


def hill(request: TrialRequest) -> float:
    return 90 - 10 * (math.log10(request.params["lr"]) + 2) ** 2 + request.epoch / 10


def run(
    how: Search, competitor: Competitor = SGD, score: Callable[[TrialRequest], float] = hill
) -> tuple[list[Ended], list[list[TrialRequest]]]:
    """Answer a search from a formula; return its trials and what it asked for."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    asking = search(competitor, how)
    asked = [next(asking)]
    while True:
        try:
            scores = [Score(score(r), score(r), 1.0) for r in asked[-1]]
            asked.append(asking.send(scores))
        except StopIteration as last:
            return last.value, asked


def make(sampler: str = "tpe", pruner: str = "none", trials: int = 12, **others: object) -> Search:
    values = {"metric": "top1", "round_size": 4, "seed": 0, "epochs": 20, **others}
    return Search(sampler, pruner, trials=trials, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", ["grid", "tpe", "random"])
@pytest.mark.parametrize("pruner", ["none", "median", "halving"])
def test_the_seed_decides_everything(sampler: str, pruner: str) -> None:
    first, asked = run(make(sampler, pruner))
    assert run(make(sampler, pruner)) == (first, asked)
    other, _ = run(make(sampler, pruner, seed=1))
    assert [t.params for t in other] != [t.params for t in first]
    assert [t.number for t in first] == list(range(12))
    assert any(t.state == "complete" for t in first)


def test_a_grid_has_no_point_twice_and_is_used_up() -> None:
    ended, asked = run(make("grid", trials=36))
    points = {tuple(sorted(t.params.items())) for t in ended}
    assert len(points) == 36
    assert {p["lr"] for p in (t.params for t in ended)} == set(SGD.grids()["lr"])
    assert len(asked) == 1  # nothing is learnt on the way, so nothing waits
    few, _ = run(make("grid", trials=9))
    assert {tuple(sorted(t.params.items())) for t in few} < points


def test_every_competitor_gets_as_many_trials() -> None:
    space = read_space("paper")
    assert count_trials(space, "grid", None) == 36
    assert count_trials(space, "grid", 10) == 10
    assert count_trials(space, "tpe", 100) == 100
    with pytest.raises(UserError, match="the grid of adamw has 36 combinations"):
        count_trials(space, "grid", 37)
    how = make("grid", trials=10)
    assert {len(run(how, c, lambda r: 1.0)[0]) for c in space} == {10}
    with pytest.raises(UserError, match="lr is a range without points"):
        count_trials(parse_space({"sgd": {"lr": {"low": 0.1, "high": 1.0}}}), "grid", None)


def test_tpe_learns() -> None:
    """After 40 trials its last ones are far better than random ones."""
    narrow = parse_space({"sgd": {"lr": {"low": 1e-6, "high": 1e2, "log": True}}})[0]

    def mean_of_last(sampler: str) -> float:
        ended, _ = run(make(sampler, trials=40), narrow)
        return sum(t.score.value for t in ended[-10:]) / 10

    assert mean_of_last("tpe") > mean_of_last("random") + 20


def test_rungs() -> None:
    assert make(pruner="none").rungs() == [20]
    assert make(pruner="median").rungs() == [2, 6, 20]
    assert make(pruner="halving", epochs=3).rungs() == [1, 3]
    assert make(pruner="halving", epochs=1).rungs() == [1]
    assert make(pruner="halving", epochs=9).rungs() == [1, 3, 9]


def test_halving_keeps_the_best_third_of_a_round() -> None:
    values = {k: float(v) for k, v in enumerate([5, 9, 1, 7, 3, 8, 2, 6, 4])}
    how = make("random", "halving", trials=9, round_size=9)
    ended, asked = run(how, score=lambda r: values[r.number])
    assert [[r.number for r in phase] for phase in asked] == [list(range(9)), [1, 3, 5], [1]]
    assert [r.epoch for phase in asked for r in phase[:1]] == [2, 6, 20]
    assert [t.epochs for t in ended] == [2, 20, 2, 6, 2, 6, 2, 2, 2]
    assert [t.number for t in ended if t.state == "complete"] == [1]
    # the same by a score of which less is better
    ended, asked = run(
        make("random", "halving", trials=9, round_size=9, metric="nll"),
        score=lambda r: -values[r.number],
    )
    assert [r.number for r in asked[1]] == [1, 3, 5]


def test_the_median_pruner_compares_with_completed_trials() -> None:
    """The first round ends; then whoever is below its median at a rung stops there."""
    values = [10.0, 20.0, 30.0, 40.0, 24.0, 26.0, 50.0, 1.0]
    ended, asked = run(make("random", "median", trials=8), score=lambda r: values[r.number])
    assert [t.state for t in ended[:4]] == ["complete"] * 4
    assert [t.number for t in ended if t.state == "complete"] == [0, 1, 2, 3, 5, 6]
    assert [r.number for r in asked[4]] == [5, 6]


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_pruning_saves_epochs_and_keeps_the_winner(pruner: str) -> None:
    def epochs(ended: list[Ended]) -> int:
        return sum(t.epochs for t in ended)

    def best(ended: list[Ended]) -> int:
        return max((t for t in ended if t.state == "complete"), key=lambda t: t.score.value).number

    whole, _ = run(make("grid", trials=36))
    pruned, asked = run(make("grid", pruner, trials=36))
    assert epochs(whole) == 36 * 20
    assert epochs(pruned) < 0.6 * epochs(whole)
    assert best(pruned) == best(whole)
    # each trial is asked for only as far as it was trained
    last = {r.number: r.epoch for phase in asked for r in phase}
    assert last == {t.number: t.epochs for t in pruned}


def test_diverged_trials_do_not_stop_the_search() -> None:
    ended, _ = run(make("tpe", "median", trials=24, metric="nll"), score=lambda r: WORST["nll"])
    assert len(ended) == 24
