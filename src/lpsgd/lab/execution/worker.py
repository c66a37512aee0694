"""A process that trains the jobs it is given: one line of JSON for each, events come back.

``python -m lpsgd.lab.execution.worker`` is started by the executor. When its input ends
(because nothing is left, the user interrupted, or the parent died), the run in progress is saved
and it exits.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, field_serializer

from lpsgd.lab.errors import Interrupted, LabError, foreseen
from lpsgd.lab.events import ErrorEvent, InterruptedEvent, RunEvent, RunListener
from lpsgd.lab.recipe import Recipe, to_json
from lpsgd.lab.training.options import RunOptions

if TYPE_CHECKING:
    from lpsgd.lab.own.problem import Problem


class JobSpec(BaseModel):
    """All that a process needs to train one run."""

    recipe: Recipe
    folder: Path
    label: str
    options: RunOptions
    problem: Path | None = None
    """The file that holds the user's own model and data."""

    @field_serializer("recipe")
    def _strict_json(self, recipe: Recipe) -> dict[str, Any]:
        return to_json(recipe)


def run_job(
    job: JobSpec, stop: threading.Event, listen: RunListener, problem: Problem | None = None
) -> None:
    """Train one run. ``listen`` hears its events; the last one says how it ended."""
    from lpsgd.lab.own.given import problem_of
    from lpsgd.lab.training.loop import train

    try:
        train(
            job.recipe,
            job.folder,
            label=job.label,
            options=job.options,
            stop=stop,
            listen=listen,
            problem=problem or problem_of(job.recipe, job.problem),
        )
    except Interrupted as request:
        listen(InterruptedEvent(text=str(request)))
    except LabError as error:
        listen(ErrorEvent(text=str(error), exit_code=error.exit_code))
    except Exception as error:
        if (text := foreseen(error)) is None:
            traceback.print_exc()
        listen(ErrorEvent(text=text or f"{type(error).__name__}: {error}"))


def main() -> None:
    """Train until the input ends."""
    # the channel is private: what libraries print goes to stderr
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(lines, stop), daemon=True).start()

    def send(event: RunEvent) -> None:
        try:
            channel.write(event.model_dump_json() + "\n")
            channel.flush()
        except BrokenPipeError:
            stop.set()

    while not stop.is_set() and (line := lines.get()) is not None:
        run_job(JobSpec.model_validate_json(line), stop, send)


def _read_input(lines: queue.SimpleQueue[str | None], stop: threading.Event) -> None:
    for line in sys.stdin:
        lines.put(line)
    stop.set()
    lines.put(None)


if __name__ == "__main__":
    main()
