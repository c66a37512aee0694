"""Run tasks in this process, one after the other: for what cannot be sent to another one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lpsgd.lab.events import AssignedEvent
from lpsgd.lab.execution.executor import TaskListener
from lpsgd.lab.execution.worker import JobSpec, run_job
from lpsgd.lab.plan import Task

if TYPE_CHECKING:
    from lpsgd.lab.own.problem import Problem
    from lpsgd.lab.training.options import RunOptions


class InlineExecutor:
    """Trains in the calling thread."""

    def __init__(self, options: RunOptions, problem: Problem | None = None) -> None:
        self.options = options
        self.problem = problem

    def run(self, tasks: Sequence[Task], listen: TaskListener, stop: threading.Event) -> None:
        """Run all tasks. ``listen`` hears every event; ``stop`` saves and ends."""
        for task in tasks:
            if stop.is_set():
                return
            listen(task, AssignedEvent())
            job = JobSpec(
                recipe=task.recipe, folder=task.folder, label=task.label, options=self.options
            )
            run_job(job, stop, partial(listen, task), self.problem)
