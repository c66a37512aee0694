"""A job: one run as values of JSON, for the process that trains it, whoever started that one."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

from pydantic import BaseModel, field_serializer

from lpsgd.lab.errors import Interrupted, LabError
from lpsgd.lab.events import ErrorEvent, InterruptedEvent, RunListener
from lpsgd.lab.recipe import Recipe, to_json
from lpsgd.lab.training.options import RunOptions


class JobSpec(BaseModel):
    """All that a process needs to train one run."""

    recipe: Recipe
    folder: Path
    label: str
    options: RunOptions

    @field_serializer("recipe")
    def _strict_json(self, recipe: Recipe) -> dict[str, Any]:
        return to_json(recipe)


def run_job(job: JobSpec, stop: threading.Event, listen: RunListener) -> None:
    """Train one run. ``listen`` hears its events; the last one says how it ended."""
    from lpsgd.lab.training.loop import train

    try:
        train(
            job.recipe, job.folder, label=job.label, options=job.options, stop=stop, listen=listen
        )
    except Interrupted as request:
        listen(InterruptedEvent(text=str(request)))
    except LabError as error:
        listen(ErrorEvent(text=str(error), exit_code=error.exit_code))
    except Exception as error:
        traceback.print_exc()
        listen(ErrorEvent(text=f"{type(error).__name__}: {error}"))
