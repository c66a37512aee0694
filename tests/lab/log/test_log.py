"""Loggers get every epoch once, however often a run is stopped, and change nothing in it."""

from __future__ import annotations

import math
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lpsgd.lab import log
from lpsgd.lab.cli import app as cli
from lpsgd.lab.errors import Interrupted, UserError
from lpsgd.lab.events import WarningEvent
from lpsgd.lab.log import run_log
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from tests.lab.comparing import SMALL_FLAGS, run_compare
from tests.lab.log.wandb_files import read_history
from tests.lab.small_runs import StopAfter, assert_same_run, metrics, small_recipe

# of MLflow's use of SQLAlchemy, and of what wandb imports
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

LOSS = "train_nll"


def tensorboard_history(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    # files that were begun within one second are read in any order
    return sorted((event.step, event.value) for event in events.Scalars(LOSS))


def mlflow_history(folder: Path) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("lpsgd").experiment_id])
    return [
        (metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, LOSS)
    ]


def wandb_history(folder: Path) -> list[tuple[int, float]]:
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return [(row["_step"], row[LOSS]) for row in read_history(path)]


HISTORIES: dict[str, Callable[[Path], list[tuple[int, float]]]] = {
    "tensorboard": tensorboard_history,
    "mlflow": mlflow_history,
    "wandb": wandb_history,
}


@pytest.fixture(scope="module")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables without a run, which take it seconds to make."""
    pytest.importorskip("mlflow")
    path = tmp_path_factory.mktemp("mlflow") / "new.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        log.check_loggers(["mlflow"])
    return path


@pytest.fixture
def mlflow(new_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    for name in ("mlflow.db", "other.db"):
        shutil.copy(new_store, tmp_path / name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return pytest.importorskip("mlflow")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield module
    module.teardown()


@pytest.fixture
def tensorboard() -> None:
    pytest.importorskip("tensorboard")


@pytest.fixture(
    params=["tensorboard", *(pytest.param(n, marks=pytest.mark.slow) for n in ("mlflow", "wandb"))]
)
def name(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(request.param)
    return str(request.param)


def expected(folder: Path) -> list[tuple[int, Any]]:
    return [(row["epoch"], pytest.approx(row[LOSS])) for row in metrics(folder)]


def test_every_epoch_is_logged_and_nothing_else_changes(name: str, tmp_path: Path) -> None:
    recipe = small_recipe("lpsgdm:lr=0.01,p=6", augment=True)
    train(recipe, tmp_path / "plain")
    train(recipe, tmp_path / "run", options=RunOptions(log=(name,)))
    assert_same_run(tmp_path / "plain", tmp_path / "run")
    assert HISTORIES[name](tmp_path / "run") == expected(tmp_path / "plain")
    assert len(expected(tmp_path / "plain")) == 2


def test_a_stopped_run_continues_the_same_one(name: str, tmp_path: Path) -> None:
    recipe, folder = small_recipe(epochs=4), tmp_path / "run"
    for looks in (7, 3, 4):
        with pytest.raises(Interrupted):
            train(recipe, folder, options=RunOptions(log=(name,)), stop=StopAfter(looks))  # type: ignore[arg-type]
    train(recipe, folder, options=RunOptions(log=(name,)))
    assert HISTORIES[name](folder) == expected(folder)
    assert len(expected(folder)) == 4


KILLED = """
import os, signal, sys
from pathlib import Path
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from tests.lab.small_runs import small_recipe

class KillAfter:
    left = int(sys.argv[3])
    def is_set(self):
        KillAfter.left -= 1
        if KillAfter.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

options = RunOptions(log=(sys.argv[2],), save_seconds=float(sys.argv[4]))
train(small_recipe(epochs=4), Path(sys.argv[1]), options=options, stop=KillAfter())
"""


@pytest.mark.slow
@pytest.mark.parametrize("save_seconds", [0.0, 1e9], ids=["checkpoints", "none"])
def test_a_killed_run_has_no_gap_and_no_epoch_twice(
    name: str, tmp_path: Path, save_seconds: float
) -> None:
    """With a checkpoint after every step nothing is trained again, without one everything is."""
    folder = tmp_path / "run"
    arguments = [str(folder), name, "20", str(save_seconds)]
    ended = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(metrics(folder)) >= 2
    train(small_recipe(epochs=4), folder, options=RunOptions(log=(name,)))
    train(small_recipe(epochs=4), tmp_path / "plain")
    assert_same_run(folder, tmp_path / "plain")
    assert HISTORIES[name](folder) == expected(folder)


def test_a_logger_asked_for_later_gets_the_earlier_epochs(name: str, tmp_path: Path) -> None:
    recipe, folder = small_recipe(epochs=3), tmp_path / "run"
    train(recipe, folder, options=RunOptions(until_epoch=2))
    train(recipe, folder, options=RunOptions(log=(name,)))
    assert HISTORIES[name](folder) == expected(folder)


# --- what is wrong, before training -------------------------------------------------------------


def test_a_missing_package_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert run_compare(tmp_path / "c", "sgd", "--log", "wandb") == 2
    assert (
        "--log wandb needs the package 'wandb': pip install 'lpsgd[log]'" in capsys.readouterr().err
    )
    assert not (tmp_path / "c").exists()


def test_an_unknown_logger_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--log", "wand"]) == 2
    assert "did you mean 'wandb'" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    out = str(tmp_path / "run")
    assert cli.main(["train", *SMALL_FLAGS, "--log", "mlflow", "--out", out]) == 1
    shown = capsys.readouterr().err
    assert "--log mlflow: cannot use http://me:***@127.0.0.1:9" in shown
    assert "MLFLOW_TRACKING_URI" in shown
    assert "secret" not in shown
    assert not Path(out).exists()


# --- what goes wrong during training -------------------------------------------------------------


class Unreliable:
    """A logger whose server answers every second time, and that draws random numbers."""

    def __init__(self) -> None:
        self.calls = 0
        self.rows: list[int] = []
        self.state = ""

    def _answer(self) -> None:
        random.random()
        np.random.rand()
        torch.rand(1)
        self.calls += 1
        if self.calls % 2:
            raise ConnectionError("no route to host\nsecond line")

    def start(self, run: log.LoggedRun) -> set[int]:
        self._answer()
        return set()

    def log(self, epoch: int, values: Any) -> None:
        self._answer()
        assert all(math.isfinite(value) for value in values.values())
        self.rows.append(epoch)

    def finish(self, state: str) -> None:
        self.state = state


def test_an_unreliable_logger_costs_warnings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, heard = Unreliable(), []
    monkeypatch.setattr(run_log, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(run_log, "make_logger", lambda name: logger)
    recipe = small_recipe(epochs=4)
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    train(recipe, tmp_path / "run", options=RunOptions(log=("wandb",)), listen=heard.append)
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    train(recipe, tmp_path / "plain")
    assert_same_run(tmp_path / "run", tmp_path / "plain")
    assert logger.rows == [1, 2, 3, 4]
    assert logger.state == "complete"
    warnings = [event.text for event in heard if isinstance(event, WarningEvent)]
    assert warnings
    assert all(text.startswith("--log wandb: no route to host. Training") for text in warnings)


@pytest.mark.slow
def test_a_run_that_diverges_is_marked(mlflow: Any, tmp_path: Path) -> None:
    result = train(
        small_recipe("sgd:lr=1e30"), tmp_path / "run", options=RunOptions(log=("mlflow",))
    )
    assert result.state == "diverged"
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("lpsgd").experiment_id])
    assert run.info.status == "FAILED"
    assert run.data.params["settings.lr"] == "1e+30"
    assert run.data.params["optimizer"] == "sgd"
    assert run.data.tags["folder"] == str(tmp_path / "run")


@pytest.mark.slow
def test_mlflow_without_the_run_gets_a_new_one(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store, or a run that was deleted there."""
    recipe, folder = small_recipe(epochs=3), tmp_path / "run"
    train(recipe, folder, options=RunOptions(log=("mlflow",), until_epoch=1))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    train(recipe, folder, options=RunOptions(log=("mlflow",), until_epoch=2))
    assert [epoch for epoch, _ in mlflow_history(folder)] == [1, 2]
    client = mlflow.MlflowClient()
    client.delete_run(client.search_runs(["1"])[0].info.run_id)
    train(recipe, folder, options=RunOptions(log=("mlflow",)))
    assert mlflow_history(folder) == expected(folder)


@pytest.mark.slow
def test_wandb_that_cannot_be_reached_logs_offline(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lpsgd.lab.log import wandb as module

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(module._SETTINGS, "init_timeout", 1)
    heard: list[Any] = []
    train(small_recipe(), tmp_path / "run", options=RunOptions(log=("wandb",)), listen=heard.append)
    assert wandb_history(tmp_path / "run") == expected(tmp_path / "run")
    (warning,) = [event.text for event in heard if isinstance(event, WarningEvent)]
    assert "logged offline; `wandb sync" in warning


@pytest.mark.slow
def test_wandb_online_gets_what_its_server_lacks(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in for the server: it has one epoch, a second was lost with the killed process."""
    server: Any = SimpleNamespace(
        offline=False, starting_step=2, steps=[], finish=lambda exit_code: 0
    )
    server.log = lambda values, step, commit: server.steps.append(step)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(wandb, "init", lambda **how: asked.append(how) or server)
    recipe, folder = small_recipe(epochs=3), tmp_path / "run"
    train(recipe, folder, options=RunOptions(until_epoch=2))
    train(recipe, folder, options=RunOptions(log=("wandb",)))
    assert server.steps == [2, 3]
    assert (asked[0]["resume"], asked[0]["project"]) == ("allow", "lpsgd")


@pytest.mark.slow
def test_both_options_of_a_comparison_log(mlflow: Any, tmp_path: Path) -> None:
    flags = ("--tensorboard", "--log", "mlflow", "--seeds", "1", "--jobs", "2")
    assert run_compare(tmp_path / "c", "sgd,adamw", *flags) == 0
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("lpsgd").experiment_id])
    assert {run.info.run_name for run in runs} == {"sgd, seed 0", "adamw, seed 0"}
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len(list((tmp_path / "c").rglob("events.out.tfevents.*"))) == 2


def test_names_are_checked() -> None:
    with pytest.raises(UserError, match="unknown logger 'tensorbord'"):
        log.logger_names("tensorbord")
    assert log.logger_names("") == ()
