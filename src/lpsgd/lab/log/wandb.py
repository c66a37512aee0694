"""Weights & Biases: online where there is an account and a network, else in the run's folder."""

from __future__ import annotations

import os
import uuid
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import wandb

from lpsgd.lab.log.interface import LoggedRun
from lpsgd.lab.recipe import to_json
from lpsgd.lab.store.disk.files import remove
from lpsgd.lab.store.disk.jsonio import read_json, write_json

_FILE = "wandb.json"  # in the run's folder: the id of its run there
_SETTINGS: dict[str, Any] = {
    "console": "off",  # what is printed stays as it is
    "silent": True,
    "reinit": "create_new",  # beside a run that the user's own script may have
    "init_timeout": 30,
    "finish_timeout": 60,  # what was not sent by then stays in the folder, for `wandb sync`
}


class WandbLogger:
    """Logs recipe and metrics to a run whose id is kept in the folder."""

    _run: Any

    def check(self) -> None:
        """Ask for the account's key while the user can answer; without one, runs are offline."""
        with suppress(wandb.errors.Error):
            wandb.login()

    def start(self, run: LoggedRun) -> Container[int]:
        """Continue the run that the folder names, or begin one; offline if it cannot be reached.

        Weights & Biases cannot append to an offline run: of two with one id, the one that is sent
        last replaces the other. So a run that resumes offline is written from its first epoch.
        """
        name = _own_id(run.folder)
        try:
            self._run = _init(run, name)
        except wandb.errors.Error as error:
            run.warn(
                f"--log wandb: {str(error).splitlines()[0]} The run is logged offline; "
                f"`wandb sync {run.folder}/wandb/offline-run-*` sends it"
            )
            wandb.teardown()  # its process still holds the id of the run that it did not begin
            self._run = _init(run, name, mode="offline")
        if self._run.offline:
            current = Path(self._run.dir).parent.name
            for folder in (run.folder / "wandb").glob(f"offline-run-*-{name}*"):
                if folder.name != current:
                    remove(folder)
        return range(self._run.starting_step)

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log one epoch as one step."""
        self._run.log({"epoch": epoch, **values}, step=epoch, commit=True)

    def finish(self, state: str) -> None:
        """Write or send what is left."""
        self._run.finish(exit_code=0 if state == "complete" else 1)


def _own_id(folder: Path) -> str:
    try:
        return str(read_json(folder / _FILE)["id"])
    except FileNotFoundError:
        made = uuid.uuid4().hex[:8]
        write_json(folder / _FILE, {"id": made})
        return made


def _init(run: LoggedRun, name: str, **how: Any) -> Any:
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT") or "lpsgd",
        id=name,
        name=run.name,
        group=run.label,  # so that charts can show the mean over seeds
        dir=run.folder,
        config=to_json(run.recipe),
        resume="allow",
        settings=wandb.Settings(**_SETTINGS),
        **how,
    )


make = WandbLogger
