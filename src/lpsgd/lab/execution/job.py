"""An order: one run as values of JSON, for the process that trains it, whoever started that one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.errors import LabError
from lpsgd.lab.recipe import make_recipe, to_json

if TYPE_CHECKING:
    from lpsgd.lab.plan import Task
    from lpsgd.lab.training.options import RunOptions


def make_order(task: Task, options: RunOptions) -> dict[str, Any]:
    """Return what `carry_out_order` needs to train ``task``."""
    return {
        "recipe": to_json(task.recipe),
        "folder": str(task.folder),
        "label": task.label,
        "options": {**asdict(options), "root": str(options.root) if options.root else None},
    }


def carry_out_order(
    order: dict[str, Any], stop: threading.Event, tell: Callable[[dict[str, Any]], None]
) -> None:
    """Train one run. ``tell`` hears its events; the last one says how it ended."""
    from lpsgd.lab.training.interrupt import Interrupted
    from lpsgd.lab.training.loop import train
    from lpsgd.lab.training.options import RunOptions

    options = dict(order["options"])
    options["root"] = Path(options["root"]) if options["root"] else None
    try:
        train(
            make_recipe(order["recipe"]),
            Path(order["folder"]),
            label=order["label"],
            options=RunOptions(**options),
            stop=stop,
            listen=tell,
        )
    except Interrupted as request:
        tell({"event": "interrupted", "text": str(request)})
    except LabError as error:
        tell(error_event(str(error), error.exit_code))
    except Exception as error:
        import traceback

        traceback.print_exc()
        tell(error_event(f"{type(error).__name__}: {error}"))


def error_event(text: str, exit_code: int = LabError.exit_code) -> dict[str, Any]:
    """Return the last event of a run that failed."""
    return {"event": "error", "text": text, "exit_code": exit_code}
