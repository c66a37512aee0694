"""Where runs are trained: processes of this machine, or a Ray cluster. The user's choice."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError

if TYPE_CHECKING:
    from lpsgd.lab.events import RunEvent
    from lpsgd.lab.own.problem import Problem
    from lpsgd.lab.plan import Task
    from lpsgd.lab.training.options import RunOptions

TaskListener = Callable[["Task", "RunEvent"], None]
"""Hears every event of every run. The last one of a run is a `FinalEvent`."""

EXECUTORS = ("local", "ray")
RETRIES = 2
"""How often a run whose process was lost is tried again, from its last checkpoint."""


class Executor(Protocol):
    """Runs tasks; what they compute does not depend on which executor it is."""

    def run(self, tasks: Sequence[Task], listen: TaskListener, stop: threading.Event) -> None:
        """Run all tasks. ``listen`` hears every event, in this thread; ``stop`` saves and ends."""


@dataclass(frozen=True)
class ExecutorChoice:
    """What the options ``--executor``, ``--jobs``, ``--address``, ... say; None is not given."""

    name: str = "local"
    jobs: int | None = None
    address: str | None = None
    cpus_per_run: float | None = None
    gpus_per_run: float | None = None

    def __post_init__(self) -> None:
        if self.name not in EXECUTORS:
            raise UserError(
                f"--executor {self.name}: {unknown_name('executor', self.name, EXECUTORS)}"
            )
        if self.name == "local":
            self._refuse(("address", "cpus_per_run", "gpus_per_run"), "needs --executor ray")
        else:
            self._refuse(
                ("jobs",),
                "is for --executor local; Ray starts as many runs as --cpus-per-run and "
                "--gpus-per-run leave room for",
            )

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if (value := getattr(self, name)) is not None:
                raise UserError(f"--{name.replace('_', '-')} {value} {why}")


@contextmanager
def making_executor(
    choice: ExecutorChoice,
    tasks: Sequence[Task],
    options: RunOptions,
    problem: Problem | None = None,
) -> Iterator[Executor]:
    """The executor that was chosen, ready for ``tasks``; ``problem`` is what they train.

    What cannot be sent to another process is trained in this one, and the user is told.
    """
    if choice.name == "ray":
        from lpsgd.lab.execution.ray import RayExecutor

        if problem is not None:
            raise UserError(
                "executor='ray' trains what other machines can import: give model and dataset as "
                "import paths, 'package.module:function'"
            )
        yield RayExecutor(choice, options)
        return
    from lpsgd.lab.execution.local import LocalExecutor, default_jobs

    jobs = default_jobs(tasks[0]) if choice.jobs is None else choice.jobs
    if jobs and problem is None:
        yield LocalExecutor(jobs, options)
        return
    from lpsgd.lab.execution.inline import InlineExecutor

    with ExitStack() as stack:
        executor: Executor = InlineExecutor(options, problem)
        if jobs and problem is not None:
            from lpsgd.lab.own.transport import NotSendable, sent

            try:
                executor = LocalExecutor(jobs, options, stack.enter_context(sent(problem)))
            except NotSendable as reason:
                print(
                    f"lpsgd: the runs are trained one after the other, in this process, because "
                    f"another one cannot be given {reason}",
                    file=sys.stderr,
                )
        yield executor
