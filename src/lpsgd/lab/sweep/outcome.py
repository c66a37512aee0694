"""What a sweep found: every trial, the winners, and how sensitive each optimizer is to its lr."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from lpsgd.lab.strict import encode
from lpsgd.lab.sweep.ledger import folder_name
from lpsgd.lab.sweep.search import Ended
from lpsgd.lab.sweep.space import Competitor, Range
from lpsgd.lab.sweep.work import Sweep

GOOD = 1.0  # percentage points below the best that still count as good
_MOST_EXACT = 12  # with more learning rates than this, neighbours are taken together
_BINS_PER_DECADE = 4
_NEAR_EDGE = 0.05  # of a range


@dataclass(frozen=True)
class TrialResult:
    """One trial, for tables and figures."""

    label: str
    number: int
    settings: Mapping[str, Any]  # the searched ones
    state: Literal["complete", "pruned", "diverged"]
    epochs: int
    value: float
    top1: float
    nll: float | None
    folder: str


@dataclass(frozen=True)
class GoodRegion:
    """The learning rates around the best one that lose at most `GOOD` points."""

    low: float
    high: float
    reaches_lowest: bool  # the region may go on below what was tried
    reaches_highest: bool

    @property
    def decades(self) -> float:
        """log10(high / low)."""
        return math.log10(self.high / self.low)

    @property
    def shown(self) -> str:
        """For people; a lower bound if the region reaches an end of what was tried."""
        bound = "at least " if self.reaches_lowest or self.reaches_highest else ""
        return f"{bound}{self.decades:.2f}"


@dataclass(frozen=True)
class Winner:
    """The best trial of one competitor, and what it took to find it."""

    label: str
    optimizer: str
    trial: TrialResult
    settings: Mapping[str, Any]  # complete
    trials: int
    complete: int
    pruned: int
    diverged: int
    epochs: int  # trained in all trials together
    region: GoodRegion | None
    edge: str | None  # "lowest" or "highest", if the best lr is the last one allowed


@dataclass(frozen=True)
class Outcome:
    """All that a sweep found."""

    sweep: Sweep
    trials: tuple[TrialResult, ...]
    winners: tuple[Winner, ...]  # of the competitors that have one

    @property
    def without_winner(self) -> list[str]:
        """The competitors of which no trial was trained to the end without diverging."""
        won = {winner.label for winner in self.winners}
        return [c.label for c in self.sweep.competitors if c.label not in won]

    def of(self, label: str) -> list[TrialResult]:
        """The trials of one competitor, in their order."""
        return [trial for trial in self.trials if trial.label == label]

    def to_json(self) -> dict[str, Any]:
        """Plain values of strict JSON."""
        winners = [
            {
                **{k: v for k, v in asdict(w).items() if k not in ("trial", "region")},
                "trial": w.trial.number,
                "val_top1": w.trial.top1,
                "val_nll": w.trial.nll,
                "good_region": None
                if w.region is None
                else {**asdict(w.region), "decades": w.region.decades, "points": GOOD},
                "recipe": f"winners/{w.label}.toml",
            }
            for w in self.winners
        ]
        made: dict[str, Any] = encode(
            {
                "folder": str(self.sweep.folder),
                "metric": f"val_{self.sweep.how.metric}",
                "winners": winners,
                "without_winner": self.without_winner,
                "trials": [asdict(trial) for trial in self.trials],
            }
        )
        return made


def conclude(sweep: Sweep, ended: Mapping[str, Sequence[Ended]]) -> Outcome:
    """From the trials of a sweep to its outcome."""
    trials = tuple(
        _trial(competitor, end)
        for competitor in sweep.competitors
        for end in ended[competitor.label]
    )
    found = [
        _winner(sweep, c, [t for t in trials if t.label == c.label], ended[c.label])
        for c in sweep.competitors
    ]
    return Outcome(sweep, trials, tuple(winner for winner in found if winner is not None))


def _trial(competitor: Competitor, end: Ended) -> TrialResult:
    chosen = competitor.settings(end.params)
    diverged = end.score.nll is None
    return TrialResult(
        competitor.label,
        end.number,
        {name: chosen[name] for name in competitor.searched},
        "diverged" if diverged else end.state,
        end.epochs,
        end.score.value,
        end.score.top1 or 0.0,
        end.score.nll,
        folder_name(competitor.label, end.number),
    )


def _winner(
    sweep: Sweep, competitor: Competitor, trials: Sequence[TrialResult], ended: Sequence[Ended]
) -> Winner | None:
    """The best complete trial; of equal ones that with the lower NLL, then the earlier one.

    None if no trial is complete: a divergence is not a result to choose.
    """
    sign = -1 if sweep.how.direction == "maximize" else 1

    def rank(place: int) -> tuple[float, float, int]:
        nll = trials[place].nll
        return sign * trials[place].value, math.inf if nll is None else nll, place

    states = [trial.state for trial in trials]
    best = min((k for k, state in enumerate(states) if state == "complete"), key=rank, default=None)
    if best is None:
        return None
    return Winner(
        label=competitor.label,
        optimizer=competitor.optimizer,
        trial=trials[best],
        settings=sweep.recipe(competitor, competitor.settings(ended[best].params)).settings,
        trials=len(trials),
        complete=states.count("complete"),
        pruned=states.count("pruned"),
        diverged=states.count("diverged"),
        epochs=sweep.how.seeds * sum(trial.epochs for trial in trials),
        region=good_region(best_by_lr(trials)),
        edge=_edge(competitor, trials[best]),
    )


def best_by_lr(trials: Iterable[TrialResult]) -> list[tuple[float, float]]:
    """(lr, best validation accuracy over the other settings), by rising lr.

    With many different rates, as samplers of ranges give, those within a quarter of a decade are
    taken together at the rate of the best of them. A pruned trial counts with its last score.
    """
    best: dict[float, float] = {}
    for trial in trials:
        if "lr" in trial.settings:
            lr = float(trial.settings["lr"])
            best[lr] = max(best.get(lr, -math.inf), trial.top1)
    if len(best) > _MOST_EXACT:
        bins: dict[int, tuple[float, float]] = {}
        for lr, top1 in best.items():
            place = math.floor(math.log10(lr) * _BINS_PER_DECADE)
            bins[place] = max(bins.get(place, (-math.inf, lr)), (top1, lr))
        best = {lr: top1 for top1, lr in bins.values()}
    return sorted(best.items())


def good_region(points: Sequence[tuple[float, float]], lost: float = GOOD) -> GoodRegion | None:
    """The interval of lr around the best where accuracy stays within ``lost`` points of it.

    Accuracy between the rates that were tried is interpolated linearly in log10(lr). An interval
    that reaches the lowest or highest rate tried is a lower bound.

    >>> region = good_region([(0.001, 80.0), (0.01, 90.0), (0.1, 70.0)])
    >>> round(region.decades, 6)  # 1/10 of a decade below, 1/20 above
    0.15
    """
    if len(points) < 2:
        return None
    best = max(range(len(points)), key=lambda k: points[k][1])
    level = points[best][1] - lost
    low, reaches_lowest = _cross(points[best::-1], level)
    high, reaches_highest = _cross(points[best:], level)
    return GoodRegion(low, high, reaches_lowest, reaches_highest)


def _cross(points: Sequence[tuple[float, float]], level: float) -> tuple[float, bool]:
    """Where accuracy first falls below ``level``; True if it does not within ``points``."""
    for (near, above), (far, below) in pairwise(points):
        if below < level:
            share = (above - level) / (above - below)
            x, y = math.log10(near), math.log10(far)
            return 10 ** (x + share * (y - x)), False
    return points[-1][0], True


def _edge(competitor: Competitor, trial: TrialResult) -> str | None:
    """Whether the best lr is the lowest or highest allowed; the best may then lie beyond."""
    choice = competitor.searched.get("lr")
    ends = choice.ends() if choice is not None else None
    if ends is None:
        return None
    low, high, lr = (math.log(x) for x in (*ends, trial.settings["lr"]))
    near = _NEAR_EDGE * (high - low) if isinstance(choice, Range) else 1e-12
    if lr <= low + near:
        return "lowest"
    return "highest" if lr >= high - near else None
