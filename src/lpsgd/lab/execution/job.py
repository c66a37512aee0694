"""A job: one run as values of JSON, for the process that trains it, whoever started that one."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.errors import LabError
from lpsgd.lab.events import ErrorEvent, InterruptedEvent, RunListener
from lpsgd.lab.recipe import Recipe, make_recipe, to_json

if TYPE_CHECKING:
    from lpsgd.lab.training.options import RunOptions


@dataclass(frozen=True)
class JobSpec:
    """All that a process needs to train one run."""

    recipe: Recipe
    folder: Path
    label: str
    options: RunOptions

    def to_json(self) -> dict[str, Any]:
        """The job as plain values."""
        root = self.options.root
        return {
            "recipe": to_json(self.recipe),
            "folder": str(self.folder),
            "label": self.label,
            "options": {**asdict(self.options), "root": None if root is None else str(root)},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JobSpec:
        """The job that `to_json` described."""
        from lpsgd.lab.training.options import RunOptions

        root = values["options"]["root"]
        options = {**values["options"], "root": None if root is None else Path(root)}
        recipe, folder = make_recipe(values["recipe"]), Path(values["folder"])
        return cls(recipe, folder, values["label"], RunOptions(**options))


def run_job(job: JobSpec, stop: threading.Event, listen: RunListener) -> None:
    """Train one run. ``listen`` hears its events; the last one says how it ended."""
    from lpsgd.lab.training.interrupt import Interrupted
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
