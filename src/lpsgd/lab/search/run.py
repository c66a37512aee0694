"""Run what the search asks for until it is satisfied, alone or with other processes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from lpsgd.lab.errors import LabError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.execution.local import default_jobs, keeping_workers
from lpsgd.lab.execution.run import run_tasks
from lpsgd.lab.plan import Task
from lpsgd.lab.search.definition import Sweep, write_definition
from lpsgd.lab.search.method import Search
from lpsgd.lab.search.proposals import Ended, Score, Searching, TrialRequest, search
from lpsgd.lab.search.space import Competitor
from lpsgd.lab.search.storage import StorageUrl
from lpsgd.lab.search.trials import TrialLog, open_trial_log
from lpsgd.lab.store.manifest import write_plan
from lpsgd.lab.store.metrics_file import MetricsRow
from lpsgd.lab.store.run_folder import check_folder
from lpsgd.lab.store.run_record import load_run

if TYPE_CHECKING:
    from lpsgd.lab.own.problem import Problem
    from lpsgd.lab.training.options import RunOptions

Wanted: TypeAlias = "Mapping[str, Sequence[TrialRequest]]"
"""What the search of each competitor asks for, by its label."""

_POLL_SECONDS = 0.5


def run_search(
    sweep: Sweep,
    url: StorageUrl,
    choice: ExecutorChoice,
    options: RunOptions,
    *,
    command: str,
    problem: Problem | None = None,
) -> dict[str, list[Ended]]:
    """Run the sweep, or what is left of it; return the trials of each competitor."""
    write_definition(sweep, url, command)
    opened = open_trial_log(url, sweep.name, sweep.competitors, sweep.how)
    with opened as log, keeping_workers():  # a rung begins where the one before has ended
        return _Runner(sweep, log, choice, replace(options, score_test=False), problem).run()


@dataclass(frozen=True)
class _Runner:
    """Answers the searches of all competitors, rung by rung, until each has returned."""

    sweep: Sweep
    log: TrialLog
    choice: ExecutorChoice
    options: RunOptions
    problem: Problem | None = None
    # The trials known so far, and what is asked of each, for `lpsgd status`.
    tasks: dict[tuple[str, int], list[Task]] = field(default_factory=dict)
    notes: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def run(self) -> dict[str, list[Ended]]:
        searches = {c.label: self._search(c) for c in self.sweep.competitors}
        wanted = {label: next(searching) for label, searching in searches.items()}
        ended: dict[str, list[Ended]] = {}
        while wanted:
            self._write_plan(wanted)
            scores = self._scores(wanted)
            for label in list(wanted):
                try:
                    wanted[label] = searches[label].send(scores[label])
                except StopIteration as last:
                    ended[label] = last.value
                    del wanted[label]
        self._write_plan({})
        return {label: ended[label] for label in searches}

    def _search(self, competitor: Competitor) -> Searching:
        label = competitor.label

        def tell(ended: list[Ended]) -> None:
            self.log.close_trials(label, ended)
            for end in ended:
                self.notes[label, end.number] = {"until_epoch": end.epochs, "state": end.outcome}

        return search(competitor, self.sweep.how, tell)

    def _write_plan(self, wanted: Wanted) -> None:
        for label, requests in wanted.items():
            for request in requests:
                key = label, request.number
                if key not in self.tasks:
                    self.tasks[key] = self.sweep.tasks(label, request)
                self.notes[key] = {"until_epoch": request.epoch}
        tasks = [task for trial in self.tasks.values() for task in trial]
        notes = {task.folder: self.notes[key] for key, t in self.tasks.items() for task in t}
        write_plan(self.sweep.folder, tasks, notes)

    def _scores(self, wanted: Wanted) -> dict[str, list[Score]]:
        """The scores that are wanted: known, trained here, or trained by another process."""
        for label, requests in wanted.items():
            self.log.enter(label, requests)
        # alone, all at once; beside others, only what can be started now
        most = self._most_at_once() if self.log.shared else None
        waiting = False
        while missing := self._unscored(wanted):
            mine: list[tuple[str, TrialRequest]] = []
            for label, request in missing:
                if (most is None or len(mine) < most) and self.log.claim(label, request.number):
                    mine.append((label, request))
            if mine:
                self._train_claimed(mine)
                continue
            if not waiting:
                print(f"waiting for {len(missing)} trials of other processes", file=sys.stderr)
                waiting = True
            time.sleep(_POLL_SECONDS)
        known = {label: self.log.scores(label) for label in wanted}
        return {k: [known[k][r.number, r.epoch] for r in v] for k, v in wanted.items()}

    def _most_at_once(self) -> int | None:
        """How many runs begin at once; None where that is up to a cluster."""
        if self.choice.name == "ray":
            return None
        shared = Task("", self.sweep.recipe_of_all(), self.sweep.folder)
        return self.choice.jobs or default_jobs(shared)

    def _unscored(self, wanted: Wanted) -> list[tuple[str, TrialRequest]]:
        """What has no score yet, the competitors taking turns."""
        known = {label: self.log.scores(label) for label in wanted}
        missing = [
            (place, label, request)
            for label, requests in wanted.items()
            for place, request in enumerate(requests)
            if (request.number, request.epoch) not in known[label]
        ]
        return [(label, request) for _, label, request in sorted(missing, key=lambda m: m[0])]

    def _train_claimed(self, mine: Sequence[tuple[str, TrialRequest]]) -> None:
        """Train the trials that this process has claimed, log their scores, and release them."""
        try:
            # another process may have logged a score just before the claim
            known = {label: self.log.scores(label) for label in {label for label, _ in mine}}
            trials = [
                (label, request.number)
                for label, request in mine
                if (request.number, request.epoch) not in known[label]
            ]
            epoch = mine[0][1].epoch  # the searches climb the rungs together
            try:
                failures = self._train((t for key in trials for t in self.tasks[key]), epoch)
            finally:  # also what was done when the user interrupted
                unscored = []
                for label, number in trials:
                    score = trial_score(self.tasks[label, number], epoch, self.sweep.how)
                    if score is not None:
                        self.log.record(label, number, epoch, score)
                    else:
                        unscored.append(f"{label} trial {number}: no score after epoch {epoch}")
            if lines := failures or unscored:
                raise LabError(
                    "\n  ".join([f"{len(lines)} runs failed:", *lines])
                    + "\nThe same command tries them again."
                )
        finally:
            for label, request in mine:
                self.log.release(label, request.number)

    def _train(self, runs: Iterable[Task], epoch: int) -> list[str]:
        """Train some runs until ``epoch``; return what failed, in words."""
        todo = []
        for task in runs:
            check_folder(task.folder, task.recipe)
            if read_score(task, epoch, self.sweep.how) is None:
                todo.append(task)
        options = replace(self.options, until_epoch=epoch)
        return run_tasks(todo, self.choice, options, problem=self.problem) if todo else []


def trial_score(tasks: Sequence[Task], epoch: int, how: Search) -> Score | None:
    """The mean over a trial's seeds; the worst if one diverged, None if one is not there yet."""
    known = [score for task in tasks if (score := read_score(task, epoch, how)) is not None]
    if len(known) < len(tasks):
        return None
    if any(score.nll is None for score in known):
        return Score(how.worst, how.worst_merit, None)
    return Score(*(fmean(getattr(s, n) for s in known) for n in ("value", "top1", "nll")))


def read_score(task: Task, epoch: int, how: Search) -> Score | None:
    """A run's validation score after ``epoch``, or None if it has not got there.

    A run that diverged has the worst score from then on.
    """
    run = load_run(task.folder, task.folder)
    for row in run.history:
        if row.epoch == epoch and (score := _row_score(row, how)) is not None:
            return score
    if run.state == "diverged":
        return Score(how.worst, how.worst_merit, None)
    return None


def _row_score(row: MetricsRow, how: Search) -> Score | None:
    own = how.own_direction is not None
    value, loss = row.get(f"val_{how.metric}"), row.get("val_loss" if own else "val_nll")
    merit = how.sign * value if own and value is not None else row.val_top1
    if value is None or loss is None or merit is None:
        return None
    # weights that are NaN have an accuracy, too: that of chance
    return Score(value, merit, loss) if math.isfinite(merit + loss) else None
