"""What the rows of the screening say: scores with intervals, tests, and how wide a good region is.

A function of docs/results/screening/runs.csv and nothing else. A task counts once every one of its
candidates has all of its fresh seeds; `scripts/draw_screening.py` writes tables and figures of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]

import pages  # noqa: E402
from scores import UNITS, better, good_width, width_text  # noqa: E402
from screening import SEEDS, Row, Screening  # noqa: E402

from lpsgd.lab.analysis import stats  # noqa: E402

REFERENCE = "AdamW"
INFINITE = "Muon"  # p = inf, which the other exponents are held against
EXPONENTS = (  # the same rule with other exponents of the singular values
    "Muon, p = 9",
    "Muon, p = 5",
    "Muon, p from inf to 9",
    "Muon, p from inf to 2",
    "Muon, alpha = -0.15",
    "Muon, alpha from -0.3 to 0",
)
ADDITIONS = (
    "LPMuon (cautious, rows)",
    "Muon + cautious",
    "Muon + rows",
)  # what LPMuon adds to Muon
LOST = {"top1": 1.0, "nll": 0.05}  # what may be lost at a good learning rate


@dataclass(frozen=True)
class Found:
    """One candidate on one task: the winner's fresh seeds, and how wide its good region is."""

    candidate: str
    lr: float
    scores: stats.Summary
    versus: stats.Paired
    p_holm: float | None
    width: float
    at_least: bool

    @property
    def rank(self) -> float:
        """The mean score."""
        assert self.scores.mean is not None
        return self.scores.mean


@dataclass(frozen=True)
class Gain:
    """What a change of Muon's rule gains on one task; positive is better."""

    task: str
    candidate: str
    paired: stats.Paired
    p_holm: float | None = None

    @property
    def certain(self) -> bool:
        """Whether the difference stands after Holm's correction."""
        return self.p_holm is not None and self.p_holm < stats.ALPHA


def metric(screening: Screening, task: str) -> str:
    """What decides on a task."""
    return str(screening.tasks[task]["metric"])


def score(row: Row, name: str) -> float | None:
    """The score of a run in that metric; None if it diverged."""
    return row.top1 if name == "top1" else row.nll


def fresh_seeds(screening: Screening, task: str) -> dict[str, dict[int, float]]:
    """candidate -> seed -> test score of the winner; what diverged has the worst of the task."""
    name = metric(screening, task)
    rows = [
        row
        for row in screening.rows.values()
        if row.task == task
        and row.split == "test"
        and row.lr == screening.best_rate(task, row.candidate)
    ]
    known = [value for row in rows if (value := score(row, name)) is not None]
    if not known:
        return {}
    worst = min(known, key=lambda value: better(name) * value)
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        value = score(row, name)
        found.setdefault(row.candidate, {})[row.seed] = worst if value is None else value
    return found


def finished(screening: Screening) -> list[str]:
    """The tasks of which no run is missing; one that diverged is not missing."""
    found = []
    for task in screening.tasks:
        tested = fresh_seeds(screening, task)
        if all(tested.get(name, {}).keys() == set(SEEDS) for name in screening.names(task)):
            found.append(task)
    return found


def paired(values: dict[int, float], reference: dict[int, float], sign: int = 1) -> stats.Paired:
    """The paired test over the seeds that both have."""
    shared = sorted(values.keys() & reference.keys())
    return stats.paired([sign * values[s] for s in shared], [sign * reference[s] for s in shared])


def conclude(screening: Screening, task: str) -> list[Found]:
    """The candidates that have fresh seeds, the best first."""
    name = metric(screening, task)
    tested = fresh_seeds(screening, task)
    reference = tested.get(REFERENCE, {})
    sign = better(name)
    versus = {candidate: paired(values, reference, sign) for candidate, values in tested.items()}
    others = [candidate for candidate in tested if candidate != REFERENCE]
    corrected = dict(zip(others, stats.holm([versus[c].p for c in others]), strict=True))
    found = []
    for candidate, values in tested.items():
        width, at_least = good_rates(screening.trials(task, candidate), name)
        found.append(
            Found(
                candidate,
                screening.best_rate(task, candidate),
                stats.summarise(list(values.values())),
                versus[candidate],
                corrected.get(candidate),
                width,
                at_least,
            )
        )
    return sorted(found, key=lambda f: sign * f.rank, reverse=True)


def gains_over_muon(screening: Screening, tasks: Iterable[str], names: Sequence[str]) -> list[Gain]:
    """Each of the rules against Muon on each task, on the same seeds.

    Of `EXPONENTS`: can p be replaced by infinity without loss?
    """
    gains = []
    for task in tasks:
        tested = fresh_seeds(screening, task)
        sign = better(metric(screening, task))
        gains += [
            Gain(task, name, paired(tested[name], tested[INFINITE], sign))
            for name in names
            if name in tested and INFINITE in tested
        ]
    corrected = stats.holm([gain.paired.p for gain in gains])
    return [replace(gain, p_holm=p) for gain, p in zip(gains, corrected, strict=True)]


def good_rates(trials: Sequence[Row], name: str) -> tuple[float, bool]:
    """How far the learning rate can be off at the cost of `LOST`."""
    merits = {
        row.lr: -math.inf if (value := score(row, name)) is None else better(name) * value
        for row in trials
    }
    return good_width(merits, LOST[name])


# --- tables -----------------------------------------------------------------------------------


def table(found: Sequence[Found], name: str) -> str:
    """One task in Markdown, the best first."""
    unit, digits = UNITS[name]
    head = ["rule", "lr", unit, f"better than {REFERENCE} by", "p (Holm)", "good rates span"]
    body = []
    for f in found:
        difference = f.versus.difference if f.candidate != REFERENCE else None
        body.append(
            [
                f.candidate,
                f"{f.lr:.3g}",
                pages.mean_text(f.scores, digits),
                "" if difference is None else pages.signed(difference, digits),
                pages.p_text(f.p_holm),
                width_text(f.width, f.at_least),
            ]
        )
    return pages.table(head, body)


def leaders_table(screening: Screening, tasks: Sequence[str]) -> str:
    """The scores of a few rules, a column for each task."""
    scores = {task: {f.candidate: f.scores for f in conclude(screening, task)} for task in tasks}
    rules = list(dict.fromkeys(rule for found in scores.values() for rule in found))
    shared = [rule for rule in rules if all(rule in found for found in scores.values())]
    digits = {task: UNITS[metric(screening, task)][1] for task in tasks}
    body = [[r, *[pages.mean_text(scores[t][r], digits[t]) for t in tasks]] for r in shared]
    return pages.table(["rule", *tasks], body)


def gains_table(gains: Sequence[Gain], screening: Screening) -> str:
    """What each rule gains over Muon, with the interval; what is certain in bold."""
    columns = list(dict.fromkeys(gain.candidate for gain in gains))
    body = []
    for task in dict.fromkeys(gain.task for gain in gains):
        own = {gain.candidate: gain for gain in gains if gain.task == task}
        digits = UNITS[metric(screening, task)][1]
        body.append([task, *[_gain(own.get(name), digits) for name in columns]])
    return pages.table(["task", *[name.removeprefix("Muon, ") for name in columns]], body)


def _gain(gain: Gain | None, digits: int) -> str:
    if gain is None:
        return ""
    found = gain.paired
    text = pages.interval(found.difference, found.low, found.high, digits)
    return f"**{text}**" if gain.certain else text


def as_csv(screening: Screening, tasks: Iterable[str]) -> str:
    """Every number of the tables of single tasks."""
    heads = "task,rule,metric,lr,n,mean,sd,low,high,difference,difference_low,difference_high"
    body = []
    for task in tasks:
        for f in conclude(screening, task):
            s, v = f.scores, f.versus
            numbers = (s.mean, s.sd, s.low, s.high, v.difference, v.low, v.high, v.p, f.p_holm)
            first = (task, f.candidate, metric(screening, task), f.lr, s.n)
            body.append([*first, *numbers, f.width, str(f.at_least).lower()])
    last = ("p", "p_holm", "good_rates_span", "span_is_lower_bound")
    return pages.csv_text([*heads.split(","), *last], body)


def gains_csv(gains: Iterable[Gain]) -> str:
    """Every number of the tables of gains."""
    head = ("task", "rule", "against", "n", "gain", "low", "high", "p", "p_holm")
    body = []
    for gain in gains:
        v = gain.paired
        first = (gain.task, gain.candidate, INFINITE, v.n)
        body.append([*first, v.difference, v.low, v.high, v.p, gain.p_holm])
    return pages.csv_text(head, body)
