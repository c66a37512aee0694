"""The validation score of a trial, read from the folders of its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from lpsgd.lab.plan import Task
from lpsgd.lab.search.proposals import WORST, Score, Search
from lpsgd.lab.store.run_record import load_run


def trial_score(tasks: Sequence[Task], epoch: int, how: Search) -> Score | None:
    """The mean over a trial's seeds; the worst if one diverged, None if one is not there yet."""
    scores = [read_score(task, epoch, how) for task in tasks]
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return None
    if any(score.nll is None for score in known):
        return Score(WORST[how.metric], 0.0, None)
    value, top1, nll = (fmean(getattr(s, n) for s in known) for n in ("value", "top1", "nll"))
    return Score(value, top1, nll)


def read_score(task: Task, epoch: int, how: Search) -> Score | None:
    """A run's validation score after ``epoch``, or None if it has not got there.

    A run that diverged has the worst score from then on.
    """
    run = load_run(task.folder, task.folder)
    for row in run.history:
        top1, nll = row.val_top1, row.val_nll
        # weights that are NaN have an accuracy, too: that of chance
        known = top1 is not None and nll is not None and math.isfinite(top1 + nll)
        if row.epoch == epoch and known:
            value = top1 if how.metric == "top1" else nll
            assert value is not None
            return Score(value, top1, nll)
    if run.state == "diverged":
        return Score(WORST[how.metric], 0.0, None)
    return None
