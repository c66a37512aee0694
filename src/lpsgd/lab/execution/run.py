"""Run a list of runs, shown live, resumable, until all have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lpsgd.lab.errors import Interrupted, UserError
from lpsgd.lab.events import ErrorEvent, RunEvent
from lpsgd.lab.execution.executor import ExecutorChoice, making_executor
from lpsgd.lab.execution.live import RunsDisplay
from lpsgd.lab.execution.signals import stop_on_signals
from lpsgd.lab.plan import Task
from lpsgd.lab.store.disk.lock import is_held
from lpsgd.lab.store.run_files import read_result, write_error
from lpsgd.lab.training.options import RunOptions

if TYPE_CHECKING:
    from lpsgd.lab.own.problem import Problem


def run_tasks(
    tasks: Sequence[Task],
    choice: ExecutorChoice,
    options: RunOptions,
    *,
    title: str = "",
    problem: Problem | None = None,
) -> list[str]:
    """Train what has not ended yet; return what failed, in words.

    ``title`` names what the runs are for, where a command has several such lists. ``problem`` holds
    the model and the data if they were given as Python objects.
    """
    results = {task.folder: read_result(task.folder) for task in tasks}
    todo = [task for task in tasks if results[task.folder] is None]
    failures: list[str] = []
    with stop_on_signals() as stop, RunsDisplay(tasks, title=title) as display:
        wrong_input = False

        def listen(task: Task, event: RunEvent) -> None:
            nonlocal wrong_input
            display.listen(task, event)
            if isinstance(event, ErrorEvent):
                failures.append(f"{task.label} seed {task.recipe.seed}: {event.text}")
                if event.exit_code == UserError.exit_code:
                    wrong_input = True  # the same for every run: do not try them all
                    stop.set()
                elif not is_held(task.folder):  # by another command, whose run it then is
                    write_error(task.folder, event.text)

        for task in tasks:
            if (ended := results[task.folder]) is not None:
                display.already_done(task, ended)
        if todo:
            with making_executor(choice, todo, options, problem) as executor:
                executor.run(todo, listen, stop)
        if wrong_input:
            raise UserError(failures[0])
        if stop.is_set():
            raise Interrupted("stopped; what was done is saved and the same command resumes it")
    return failures
