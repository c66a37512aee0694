"""Which trials to run next, as a pure function of the definition and of the scores so far.

The search is a generator: it yields what it wants to know, gets the scores, and yields again. It
never looks at a clock, a folder or a database, so the same definition and scores give the same
trials wherever it runs, however many runs there are at once. A killed sweep is resumed by
running the generator from its beginning and answering from memory what is known.

Trials are asked for in rounds of a fixed size, each trained to the first rung, scored, pruned,
trained on to the next rung, and so on; the sampler learns of a round when all of it has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from lpsgd.lab.search.method import REDUCTION, Search
from lpsgd.lab.search.space import Competitor

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial


@dataclass(frozen=True)
class TrialRequest:
    """A trial whose score after some epoch the search wants to know."""

    number: int
    params: Mapping[str, Any]
    epoch: int


@dataclass(frozen=True)
class Score:
    """How a trial stands on the validation split after some epoch."""

    value: float
    top1: float | None
    nll: float | None


@dataclass(frozen=True)
class Ended:
    """How one trial went."""

    number: int
    params: Mapping[str, Any]
    state: Literal["complete", "pruned"]
    epochs: int
    score: Score

    @property
    def outcome(self) -> Literal["complete", "pruned", "diverged"]:
        """How it ended, as people see it: to the search a divergence is a score like others."""
        return "diverged" if self.score.nll is None else self.state


Searching: TypeAlias = "Generator[list[TrialRequest], list[Score], list[Ended]]"


def search(
    competitor: Competitor, how: Search, tell: Callable[[list[Ended]], None] = lambda ended: None
) -> Searching:
    """Ask for scores, and return all trials in the order of their numbers.

    ``tell`` hears of every round when it has ended.
    """
    study = optuna.create_study(
        direction=how.direction, sampler=_sampler(how), pruner=_pruner(how), storage=None
    )
    if how.sampler == "grid":
        for params in grid_points(competitor, how):
            study.enqueue_trial(params)
    distributions = {name: choice.distribution() for name, choice in competitor.searched.items()}
    ended: list[Ended] = []
    for numbers in how.rounds():
        trials = [study.ask(distributions) for _ in numbers]
        round_ended = yield from _round(study, trials, how)
        tell(round_ended)
        ended += round_ended
    return ended


def _round(study: Study, trials: list[Trial], how: Search) -> Searching:
    """Take some trials through the rungs; the sampler hears of them in the order of numbers."""
    ended: dict[int, Ended] = {}
    alive = trials
    for epoch in how.rungs():
        scores = yield [TrialRequest(trial.number, trial.params, epoch) for trial in alive]
        for trial, score in zip(alive, scores, strict=True):
            trial.report(score.value, epoch)
        last = epoch == how.epochs
        # all are reported before any is judged
        pruned = [not last and trial.should_prune() for trial in alive]
        for trial, score, out in zip(alive, scores, pruned, strict=True):
            if out or last:
                state: Literal["complete", "pruned"] = "pruned" if out else "complete"
                ended[trial.number] = Ended(trial.number, trial.params, state, epoch, score)
        alive = [trial for trial, out in zip(alive, pruned, strict=True) if not out]
    for trial in trials:
        end = ended[trial.number]
        if end.state == "pruned":
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, end.score.value)
    return [ended[trial.number] for trial in trials]


def grid_points(competitor: Competitor, how: Search) -> list[dict[str, Any]]:
    """A seeded random subset of the grid, without repetition, in random order."""
    grids = competitor.grids()
    points = list(product(*grids.values()))
    chosen = random.Random(f"{how.seed}/{competitor.label}").sample(points, how.trials)
    return [dict(zip(grids, point, strict=True)) for point in chosen]


def _sampler(how: Search) -> BaseSampler:
    if how.sampler == "tpe":
        # random at first; then all settings together, because lr and decay depend on each other
        start = min(10, max(how.round_size, how.trials // 3))
        return TPESampler(seed=how.seed, n_startup_trials=start, multivariate=True)
    return RandomSampler(seed=how.seed)


def _pruner(how: Search) -> BasePruner:
    if how.pruner == "median":
        return MedianPruner(n_startup_trials=how.round_size)
    return Halving() if how.pruner == "halving" else NopPruner()


class Halving(BasePruner):
    """Keep a trial that is among the best third of all trials which came to its rung.

    optuna's SuccessiveHalvingPruner judges each trial by those that were judged before it, so that
    the first one is always kept; here all of a round is reported before any of it is judged.
    """

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Tell whether ``trial`` should end at the step that it reported last."""
        step = trial.last_step
        if step is None:
            return False
        others = [t.intermediate_values.get(step) for t in study.get_trials(deepcopy=False)]
        known = sorted(value for value in others if value is not None)
        keep = max(1, len(known) // REDUCTION)
        value = trial.intermediate_values[step]
        if study.direction == optuna.study.StudyDirection.MAXIMIZE:
            return value < known[-keep]
        return value > known[keep - 1]
