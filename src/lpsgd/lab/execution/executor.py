"""Where runs are trained: processes of this machine, or a Ray cluster. The user's choice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError

if TYPE_CHECKING:
    from lpsgd.lab.events import RunEvent
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


def make_executor(choice: ExecutorChoice, tasks: Sequence[Task], options: RunOptions) -> Executor:
    """Return the executor that was chosen, ready for ``tasks``."""
    if choice.name == "ray":
        from lpsgd.lab.execution.ray import RayExecutor

        return RayExecutor(choice, options)
    from lpsgd.lab.execution.local import LocalExecutor, default_jobs

    return LocalExecutor(choice.jobs or default_jobs(tasks[0]), options)
