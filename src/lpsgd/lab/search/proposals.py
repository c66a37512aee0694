"""Which trials to run next, as a pure function of the definition and of the scores so far.

The search is a generator: it yields what it wants to know, gets the scores, and yields again. It
never looks at a clock, a folder or a database, so the same definition and scores give the same
trials wherever it runs, however many runs there are at once. A killed sweep is resumed by
running the generator from its beginning and answering from memory what is known.

Trials are asked for in rounds of a fixed size, each trained to the first rung, scored, pruned,
trained on to the next rung, and so on; the sampler learns of a round when all of it has ended.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from lpsgd.lab.errors import UserError
from lpsgd.lab.search.space import Competitor

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

SAMPLERS = ("grid", "tpe", "random")
PRUNERS = ("none", "median", "halving")
Direction = Literal["maximize", "minimize"]
# The scores to choose by, of the validation split.
DIRECTIONS: dict[str, Direction] = {"top1": "maximize", "nll": "minimize"}
# What a trial that diverged counts with. Finite, because pruners and samplers take differences.
WORST = {"top1": 0.0, "nll": 1e6}
REDUCTION = 3  # a rung is a third of the next, and halving keeps a third
DEFAULT_TRIALS = 20


@dataclass(frozen=True)
class Search:
    """How to search; with the spaces and the recipe, everything that decides the result."""

    sampler: str
    pruner: str
    metric: str
    trials: int
    round_size: int
    seed: int
    epochs: int
    seeds: int = 1  # runs of each trial, whose scores are averaged

    @property
    def direction(self) -> Direction:
        """Whether more is better."""
        return DIRECTIONS[self.metric]

    def rungs(self) -> list[int]:
        """The epochs after which trials are scored; pruning is decided at all but the last.

        >>> Search("tpe", "halving", "top1", 8, 4, 0, 20).rungs()
        [2, 6, 20]
        """
        if self.pruner == "none":
            return [self.epochs]
        earlier = [self.epochs // REDUCTION**k for k in (2, 1)]
        return [*dict.fromkeys(e for e in earlier if e >= 1), self.epochs]

    def rounds(self) -> list[range]:
        """The numbers of the trials that are asked for together."""
        # what neither sampler nor pruner learns from need not wait for one another
        size = self.trials if self.sampler != "tpe" and self.pruner == "none" else self.round_size
        return [range(k, min(k + size, self.trials)) for k in range(0, self.trials, size)]


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


def count_trials(competitors: Sequence[Competitor], sampler: str, asked: int | None) -> int:
    """How many trials each competitor gets: as many for each, none of a grid twice."""
    if sampler != "grid":
        return asked or DEFAULT_TRIALS
    sizes = {c.label: _grid_size(c) for c in competitors}
    least = min(sizes, key=sizes.__getitem__)
    if asked is not None and asked > sizes[least]:
        raise UserError(
            f"--trials {asked}: the grid of {least} has {sizes[least]} combinations, and every "
            f"optimizer gets as many trials; give --trials {sizes[least]} or fewer, widen that "
            "grid, or search ranges with --sampler tpe or random"
        )
    return asked or sizes[least]


def _grid_size(competitor: Competitor) -> int:
    size = math.prod(map(len, competitor.grids().values()))
    if size > 1_000_000:
        raise UserError(f"{competitor.label}: a grid of {size} combinations; at most a million")
    return size


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
