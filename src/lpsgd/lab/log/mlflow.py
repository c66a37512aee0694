"""MLflow: a run in the store that ``MLFLOW_TRACKING_URI`` names, in mlflow.db here by default."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Container, Mapping

from mlflow import MlflowClient, get_tracking_uri
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

import lpsgd
from lpsgd.lab.errors import LabError
from lpsgd.lab.formatting import setting_text
from lpsgd.lab.log.interface import LoggedRun
from lpsgd.lab.store.command_line import hide_passwords
from lpsgd.lab.store.disk.jsonio import read_json, write_json

_FILE = "mlflow.json"  # in the run's folder: which run in MLflow is its own
_STATES = {"complete": "FINISHED", "diverged": "FAILED"}
_EVERY_EPOCH = "step"  # a metric that is never missing nor infinite
# MLflow tries for minutes; a training that waits so long for a dead server is as good as killed
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


class MlflowLogger:
    """Logs recipe and metrics by MLflow's client."""

    def __init__(self) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._client = MlflowClient()
        self._id = ""

    def check(self) -> None:
        """Reach the store, and make tables and experiment before several processes want to."""
        try:
            self._experiment()
        except Exception as error:
            (uri,) = hide_passwords([get_tracking_uri()])
            (reason,) = hide_passwords([" ".join(str(error).split())])
            raise LabError(
                f"--log mlflow: cannot use {uri}, which the environment variable "
                f"MLFLOW_TRACKING_URI decides: {reason}"
            ) from None

    def start(self, run: LoggedRun) -> Container[int]:
        """Continue the run that the folder names, if the store still has it; else begin one."""
        self._id = self._known(run) or self._begin(run)
        params = [Param(name, setting_text(value)) for name, value in run.settings().items()]
        self._client.log_batch(self._id, params=params)
        self._client.update_run(self._id, status="RUNNING")
        return {m.step for m in self._client.get_metric_history(self._id, _EVERY_EPOCH)}

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log one epoch in one request; MLflow has no infinite numbers."""
        now = round(1000 * time.time())
        metrics = [Metric(n, v, now, epoch) for n, v in values.items() if not math.isinf(v)]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, state: str) -> None:
        """Set the run's status."""
        self._client.set_terminated(self._id, _STATES.get(state, "KILLED"))

    def _known(self, run: LoggedRun) -> str | None:
        try:
            found = str(read_json(run.folder / _FILE)["run_id"])
        except FileNotFoundError:
            return None
        try:
            deleted = self._client.get_run(found).info.lifecycle_stage == "deleted"
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return None if deleted else found

    def _begin(self, run: LoggedRun) -> str:
        tags = {"label": run.label, "folder": str(run.folder), "lpsgd": lpsgd.__version__}
        made = self._client.create_run(self._experiment(), tags=tags, run_name=run.name)
        found = str(made.info.run_id)
        write_json(run.folder / _FILE, {"run_id": found})
        return found

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "lpsgd"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))


make = MlflowLogger
