"""What a sweep found: every trial, the winners, and how sensitive each optimizer is to its lr."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from lpsgd.lab.formatting import setting_text
from lpsgd.lab.search.definition import Sweep, folder_name
from lpsgd.lab.search.proposals import Ended
from lpsgd.lab.search.score_kind import ScoreKind, score_kind
from lpsgd.lab.search.space import Competitor, Range
from lpsgd.lab.store.disk.jsonio import encode
from lpsgd.peers.grammar import is_import_path

COVERED = 0.25  # of a grid; a search of less says so wherever its winner is judged
GOOD = 1.0  # percentage points below the best that still count as good
_MOST_EXACT = 12  # with more learning rates than this, neighbours are taken together
_BINS_PER_DECADE = 4
_NEAR_EDGE = 0.05  # of a range


@dataclass(frozen=True)
class TrialResult:
    """One trial, for tables and figures. ``top1`` and ``nll`` are merit and loss: of a problem of
    the user's own, what `ScoreKind` says of them."""

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
    reaches_lowest: bool  # the region may extend below what was tried to the end
    reaches_highest: bool
    pruned: bool = False  # trials were stopped early that might have widened the region

    @property
    def decades(self) -> float:
        """log10(high / low)."""
        return math.log10(self.high / self.low)

    @property
    def shown(self) -> str:
        """For people; a lower bound if more trials, or longer ones, might widen the region."""
        may_widen = self.reaches_lowest or self.reaches_highest or self.pruned
        bound = "at least " if may_widen else ""
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
    combinations: int | None  # of the grid; None where a range has no points

    @property
    def note(self) -> str:
        """What every verdict on these settings has to mention; nothing after a wide search."""
        doubts = []
        if self.edge:
            lr = setting_text(self.trial.settings["lr"])
            doubts.append(f"whose best learning rate, {lr}, is the {self.edge} allowed")
        if self.combinations and self.trials < COVERED * self.combinations:
            doubts.append(f"that tried {self.trials} of {self.combinations} combinations")
        return f"after a search {' and '.join(doubts)}" if doubts else ""


@dataclass(frozen=True)
class Outcome:
    """All that a sweep found."""

    sweep: Sweep
    trials: tuple[TrialResult, ...]
    winners: tuple[Winner, ...]  # of the competitors that have one

    @cached_property
    def kind(self) -> ScoreKind:
        """What the trials are judged by."""
        return score_kind(self.sweep.how, [t.top1 for t in self.trials if t.state == "complete"])

    @property
    def imports(self) -> bool:
        """Whether the winners' recipes hold import paths."""
        shared = self.sweep.recipe_of_all()
        named = (shared.model, shared.dataset, *(c.optimizer for c in self.sweep.competitors))
        return any(map(is_import_path, named))

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
                "note": w.note,
                "trial": w.trial.number,
                self.kind.keys[0]: w.trial.value if self.kind.own else w.trial.top1,
                self.kind.keys[1]: w.trial.nll,
                "good_region": None
                if w.region is None
                else {
                    **asdict(w.region),
                    "decades": w.region.decades,
                    "points": GOOD * self.kind.point,
                },
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
    kind = score_kind(sweep.how, [t.top1 for t in trials if t.state == "complete"])
    found = [
        _winner(sweep, c, [t for t in trials if t.label == c.label], ended[c.label], kind)
        for c in sweep.competitors
    ]
    return Outcome(sweep, trials, tuple(winner for winner in found if winner is not None))


def _trial(competitor: Competitor, end: Ended) -> TrialResult:
    chosen = competitor.settings(end.params)
    return TrialResult(
        competitor.label,
        end.number,
        {name: chosen[name] for name in competitor.searched},
        end.outcome,
        end.epochs,
        end.score.value,
        end.score.top1 or 0.0,
        end.score.nll,
        folder_name(competitor.label, end.number),
    )


def _winner(
    sweep: Sweep,
    competitor: Competitor,
    trials: Sequence[TrialResult],
    ended: Sequence[Ended],
    kind: ScoreKind,
) -> Winner | None:
    """The best complete trial; of equal ones that with the lower NLL, then the earlier one.

    None if no trial is complete: a divergence is not a result to choose.
    """

    def rank(place: int) -> tuple[float, float, int]:
        nll = trials[place].nll
        return -sweep.how.sign * trials[place].value, math.inf if nll is None else nll, place

    states = [trial.state for trial in trials]
    best = min((k for k, state in enumerate(states) if state == "complete"), key=rank, default=None)
    if best is None:
        return None
    region = good_region(best_by_lr(trials), GOOD * kind.point)
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
        region=region and replace(region, pruned="pruned" in states),
        edge=_edge(competitor, trials[best]),
        combinations=competitor.combinations(),
    )


def best_by_lr(trials: Iterable[TrialResult]) -> list[tuple[float, float]]:
    """(lr, best validation accuracy over the other settings), by rising lr.

    With many different rates, as samplers of ranges give, those within a quarter of a decade are
    taken together at the rate of the best of them. A pruned trial has no score that compares with
    those after the last epoch: a rate at which no trial is complete and one was pruned has NaN.
    """
    groups: dict[float, list[TrialResult]] = {}
    for trial in trials:
        if "lr" in trial.settings:
            groups.setdefault(float(trial.settings["lr"]), []).append(trial)
    if len(groups) > _MOST_EXACT:
        bins: dict[float, list[TrialResult]] = {}
        for lr, group in groups.items():
            bins.setdefault(math.floor(math.log10(lr) * _BINS_PER_DECADE), []).extend(group)
        groups = bins
    best = [max(group, key=_merit) for group in groups.values()]
    return sorted(
        (float(t.settings["lr"]), math.nan if t.state == "pruned" else t.top1) for t in best
    )


def _merit(trial: TrialResult) -> tuple[int, float, float]:
    """What is known of an lr: a score, else that it may have had one, else that it diverges."""
    known = ("diverged", "pruned", "complete").index(trial.state)
    return known, trial.top1, float(trial.settings["lr"])


def pruned_text(outcome: Outcome) -> str:
    """What to know of good regions if trials were stopped early, as a sentence to append."""
    if not any(trial.state == "pruned" for trial in outcome.trials):
        return ""
    return (
        " Pruned trials do not count, because their scores are of earlier epochs: the width is a "
        "lower bound."
    )


def good_region(points: Sequence[tuple[float, float]], lost: float = GOOD) -> GoodRegion | None:
    """The interval of lr around the best where accuracy stays within ``lost`` points of it.

    Accuracy between the rates that were tried is interpolated linearly in log10(lr). An interval
    that reaches the lowest or highest rate tried, or one of unknown accuracy (NaN), is a lower
    bound. None if nothing is known of the rates beside the best.

    >>> region = good_region([(0.001, 80.0), (0.01, 90.0), (0.1, 70.0)])
    >>> round(region.decades, 6)  # 1/10 of a decade below, 1/20 above
    0.15
    """
    known = [k for k, (_, top1) in enumerate(points) if not math.isnan(top1)]
    if not known:
        return None
    best = max(known, key=lambda k: points[k][1])
    level = points[best][1] - lost
    low, reaches_lowest = _cross(points[best::-1], level)
    high, reaches_highest = _cross(points[best:], level)
    return GoodRegion(low, high, reaches_lowest, reaches_highest) if low < high else None


def _cross(points: Sequence[tuple[float, float]], level: float) -> tuple[float, bool]:
    """Where accuracy first falls below ``level``; True if it does not as far as it is known."""
    for (near, above), (far, below) in pairwise(points):
        if math.isnan(below):
            return near, True
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
