"""What the runs of the study say, by the tests that docs/study.md has fixed beforehand.

A function of docs/results/study/trials.csv and epochs.csv and nothing else. A task counts once
every competitor has all of its trials and fresh seeds; `scripts/draw_study.py` writes it down.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]

from scores import better, good_width  # noqa: E402
from study import RESULTS, read_plan, space  # noqa: E402

from lpsgd.lab.analysis import stats  # noqa: E402

REFERENCE = "AdamW"
OURS, MUON, PAPER, CONSTANT = "LPMuon", "Muon", "LPSGDM", "LPSGDM-constant"
BEATEN = ("SGDM", "AdamW", "Lion")  # what LPMuon is said to beat
MARGIN = 0.5  # points of accuracy that "not worse" may lose


@dataclass(frozen=True)
class Run:
    """One competitor on one task with one fresh seed."""

    lr: float
    scores: tuple[float, ...]  # after each epoch
    steps: tuple[int, ...]
    seconds: tuple[float, ...]  # of training, up to the end of each epoch
    optimizer_seconds: float
    state_bytes: float  # for each parameter
    diverged: bool

    @property
    def score(self) -> float | None:
        """At the end; None if it diverged."""
        return None if self.diverged else self.scores[-1]

    def reaches(self, target: float, sign: int) -> tuple[float, float]:
        """Steps and seconds to the first epoch as good as ``target``; infinite if there is none."""
        for score, step, second in zip(self.scores, self.steps, self.seconds, strict=True):
            if sign * score >= sign * target and not self.diverged:
                return step, second
        return math.inf, math.inf


@dataclass(frozen=True)
class Test:
    """One difference that was to be tested; positive is better for the first."""

    hypothesis: int
    task: str
    first: str
    second: str
    paired: stats.Paired
    p_holm: float | None = None
    margin: float | None = None  # with one: not worse by more than that
    low_90: float | None = None

    @property
    def certain(self) -> int:
        """1 if the first is certainly better, -1 if it is certainly worse, else 0.

        Without a spread there is no p value, and the difference itself decides.
        """
        difference = self.paired.difference or 0.0
        if self.p_holm is not None and self.p_holm >= stats.ALPHA:
            return 0
        return (difference > 0) - (difference < 0)

    @property
    def holds(self) -> bool:
        """Whether the hypothesis holds here; the third, "is no better", until it is refuted."""
        if self.margin is not None:
            return self.low_90 is not None and self.low_90 > -self.margin
        return (self.certain > 0) != (self.hypothesis == 3)


@dataclass(frozen=True)
class Standing:
    """One competitor on one task, as the table shows it."""

    label: str
    lr: float
    at_edge: bool
    scores: stats.Summary
    diverged: int
    versus: stats.Paired  # against AdamW; positive is better
    milliseconds: float  # of a step
    share: float  # of a step that the optimizer takes
    state_bytes: float
    steps_to: float  # AdamW's last score of the same seed: median over seeds, inf if most do not
    seconds_to: float
    width: float  # of the good learning rates
    at_least: bool  # so wide: the region reaches the end of what was tried


@dataclass(frozen=True)
class Study:
    """The plan and what has been run of it."""

    plan: Mapping[str, Any]
    trials: Mapping[str, Mapping[str, Mapping[float, float | None]]]  # task, label, lr
    runs: Mapping[str, Mapping[str, Mapping[int, Run]]]  # task, label, seed

    def metric(self, task: str) -> str:
        """What decides on a task."""
        return str(self.plan["tasks"][task]["metric"])

    def sign(self, task: str) -> int:
        """1 where high scores are good, else -1."""
        return better(self.metric(task))

    def finished(self) -> list[str]:
        """The tasks of which no run is missing."""
        return [task for task in self.plan["tasks"] if self._whole(task)]

    def _whole(self, task: str) -> bool:
        rates = space(self.plan, self.plan["tasks"][task])
        trials, runs = self.trials.get(task, {}), self.runs.get(task, {})
        return all(
            len(trials.get(label, {})) == len(given["lr"])
            and set(runs.get(label, {})) == set(self.plan["seeds"])
            for label, given in rates.items()
        )

    def final_scores(self, task: str) -> dict[str, dict[int, float]]:
        """label -> seed -> score; a run that diverged has the worst of its task."""
        every = [run for own in self.runs[task].values() for run in own.values()]
        known = [run.score for run in every if run.score is not None]
        worst = min(known) if self.sign(task) > 0 else max(known)
        return {
            label: {s: worst if run.score is None else run.score for s, run in own.items()}
            for label, own in self.runs[task].items()
        }


def read_study(results: Path = RESULTS, plan: Mapping[str, Any] | None = None) -> Study:
    """The plan, with the rows that are there."""
    plan = read_plan() if plan is None else plan
    columns = {task: given["metric"] for task, given in plan["tasks"].items()}
    trials: dict[str, dict[str, dict[float, float | None]]] = {}
    for row in _rows(results / "trials.csv", columns):
        score = row[f"val_{columns[row['task']]}"]
        own = trials.setdefault(row["task"], {}).setdefault(row["label"], {})
        own[float(row["lr"])] = float(score) if score else None
    histories: dict[tuple[str, str, int], list[dict[str, str]]] = {}
    for row in _rows(results / "epochs.csv", columns):
        histories.setdefault((row["task"], row["label"], int(row["seed"])), []).append(row)
    runs: dict[str, dict[str, dict[int, Run]]] = {}
    for (task, label, seed), rows in histories.items():
        runs.setdefault(task, {}).setdefault(label, {})[seed] = _run(rows, columns[task])
    return Study(plan, trials, runs)


def _rows(path: Path, tasks: Mapping[str, str]) -> list[dict[str, str]]:
    """The rows of the plan's tasks."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["task"] in tasks]


def _run(rows: Sequence[Mapping[str, str]], metric: str) -> Run:
    done = [row for row in rows if row["epoch"]]
    last = rows[-1]
    return Run(
        float(last["lr"]),
        tuple(float(row[f"test_{metric}"]) for row in done),
        tuple(int(row["step"]) for row in done),
        tuple(itertools.accumulate(float(row["seconds"]) for row in done)),
        sum(float(row["optimizer_seconds"]) for row in done),
        float(last["state_bytes"]) / float(last["parameters"]),
        last["state"] == "diverged",
    )


# --- what it says -----------------------------------------------------------------------------


def compare(study: Study, task: str, first: str, second: str) -> tuple[stats.Paired, float | None]:
    """The paired test, and the lower end of the 90 % interval."""
    scores, sign = study.final_scores(task), study.sign(task)
    seeds = study.plan["seeds"]
    found = stats.paired(
        [sign * scores[first][s] for s in seeds], [sign * scores[second][s] for s in seeds]
    )
    if found.difference is None or found.sd is None:
        return found, found.difference
    half = stats.t_quantile(found.n - 1, 0.10) * found.sd / math.sqrt(found.n)
    return found, found.difference - half


def hypotheses(study: Study, tasks: Sequence[str]) -> list[Test]:
    """Every test of the plan; p corrected by Holm over all that have one."""
    tests = []
    for task in tasks:
        for other in BEATEN:
            tests.append(Test(1, task, OURS, other, compare(study, task, OURS, other)[0]))
        found, low = compare(study, task, OURS, MUON)
        images = study.metric(task) == "top1"
        tests.append(Test(2, task, OURS, MUON, found, None, MARGIN if images else None, low))
        tests.append(Test(3, task, PAPER, REFERENCE, compare(study, task, PAPER, REFERENCE)[0]))
    tested = [test for test in tests if test.margin is None]
    corrected = iter(stats.holm([test.paired.p for test in tested]))
    tests = [t if t.margin is not None else replace(t, p_holm=next(corrected)) for t in tests]
    return sorted(tests, key=lambda test: test.hypothesis)


def standings(study: Study, task: str) -> list[Standing]:
    """All competitors of a task, the best first."""
    scores, sign = study.final_scores(task), study.sign(task)
    found = []
    for label, own in study.runs[task].items():
        runs = list(own.values())
        trials = study.trials[task][label]
        there = [run.reaches(scores[REFERENCE][seed], sign) for seed, run in own.items()]
        done = [run for run in runs if run.steps]
        seconds = sum(run.seconds[-1] for run in done)
        width, at_least = good_rates(trials, study.metric(task))
        found.append(
            Standing(
                label,
                runs[0].lr,
                runs[0].lr in (min(trials), max(trials)),
                stats.summarise(list(scores[label].values())),
                sum(run.diverged for run in runs),
                compare(study, task, label, REFERENCE)[0],
                1e3 * seconds / sum(run.steps[-1] for run in done),
                sum(run.optimizer_seconds for run in done) / seconds,
                statistics.median(run.state_bytes for run in runs),
                statistics.median(steps for steps, _ in there),
                statistics.median(time for _, time in there),
                width,
                at_least,
            )
        )
    return sorted(found, key=lambda s: sign * (s.scores.mean or 0.0), reverse=True)


def good_rates(trials: Mapping[float, float | None], metric: str) -> tuple[float, bool]:
    """How far the learning rate can be off at the cost of a point, or 1 % of the best NLL."""
    sign = better(metric)
    merits = {lr: -math.inf if s is None else sign * s for lr, s in trials.items()}
    return good_width(merits, 1.0 if metric == "top1" else 0.01 * abs(max(merits.values())))


def planned_tests(study: Study) -> int:
    """How many p values the plan corrects for together."""
    images = sum(study.metric(task) == "top1" for task in study.plan["tasks"])
    tasks = len(study.plan["tasks"])
    return len(BEATEN) * tasks + (tasks - images) + tasks
