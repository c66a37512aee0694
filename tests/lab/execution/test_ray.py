"""Runs on a Ray cluster: several nodes on this machine, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from lpsgd.lab.cli import app as cli
from lpsgd.lab.errors import Interrupted
from lpsgd.lab.store.run_folder import remove_heartbeat, write_heartbeat
from lpsgd.lab.training.loop import train
from tests.lab.comparing import (
    SMALL_FLAGS,
    kill_own_process,
    processes_holding,
    run_compare,
    wait_until,
)
from tests.lab.small_runs import StopAfter, assert_same_run, read, small_recipe
from tests.lab.store.test_status import held

ray = pytest.importorskip("ray", reason="needs pip install 'lpsgd[ray]'")

from lpsgd.lab.execution import ray as ray_executor  # noqa: E402

# ---------------------------------------------------------------------- without a cluster


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--executor", "slurm"], "unknown executor 'slurm'"),
        (["--address", "auto"], "--address auto needs --executor ray"),
        (["--cpus-per-run", "2"], "--cpus-per-run 2.0 needs --executor ray"),
        (["--gpus-per-run", "1"], "--gpus-per-run 1.0 needs --executor ray"),
        (["--executor", "ray", "--jobs", "2"], "--jobs 2 is for --executor local"),
        (["--executor", "ray", "--address", "127.0.0.1:1"], "nothing answers there"),
        (["--executor", "ray", "--address", "ray://head:10001"], "write HOST:PORT"),
        (["--executor", "ray", "--address", "head"], "write HOST:PORT"),
    ],
)
def test_wrong_options_are_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    began = time.monotonic()
    assert run_compare(tmp_path / "out", "sgd", *options) == 2
    assert message in capsys.readouterr().err
    assert time.monotonic() - began < 30
    assert not (tmp_path / "out/runs").exists()


def test_without_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run_compare(tmp_path / "out", "sgd", "--executor", "ray") == 2
    assert "pip install 'lpsgd[ray]'" in capsys.readouterr().err


def test_a_password_is_kept_from_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which shows the command line of every job."""
    monkeypatch.setattr("sys.argv", ["lpsgd", "--storage", "postgresql://me:secret@host/db"])
    assert run_compare(tmp_path / "out", "sgd", "--executor", "ray") == 2
    told = capsys.readouterr().err
    assert "keep the password out of it" in told
    assert "secret" not in told


def test_a_node_that_cannot_train_says_why(tmp_path: Path) -> None:
    folder, version = tmp_path / "runs/sgd/seed-0", ray_executor.lpsgd.__version__
    assert "has lpsgd" in str(ray_executor._unfit("0.0.1", folder, "node7"))
    assert "node7 does not see" in str(ray_executor._unfit(version, folder, "node7"))
    folder.parent.mkdir(parents=True)
    assert ray_executor._unfit(version, folder, "node7") is None


def test_what_a_run_needs() -> None:
    from lpsgd.lab.errors import UserError
    from lpsgd.lab.execution.executor import ExecutorChoice
    from lpsgd.lab.plan import Task
    from lpsgd.lab.training.options import RunOptions

    def needs(choice: ExecutorChoice, gpus: int, **recipe: Any) -> tuple[float, float]:
        task = Task("sgd", small_recipe(**recipe), Path("runs"))
        nodes = [{"CPU": 8.0, "GPU": float(gpus)}]
        return ray_executor.needs(task, choice, RunOptions(workers=2), nodes)

    default = ExecutorChoice("ray")
    assert needs(default, gpus=0, threads=3) == (5, 0), "threads and the processes that read"
    assert needs(default, gpus=4) == (3, 1)
    assert needs(default, gpus=4, device="cpu") == (3, 0)
    assert needs(default, gpus=0, device="cuda") == (3, 1)
    assert needs(ExecutorChoice("ray", cpus_per_run=0.5, gpus_per_run=0.25), gpus=4) == (0.5, 0.25)
    with pytest.raises(UserError, match="Ray chooses which GPU"):
        needs(default, gpus=4, device="cuda:1")


def test_a_run_that_cannot_reach_the_mailbox_stops(tmp_path: Path) -> None:
    """So that somebody else can be told to do it."""
    mailbox = MagicMock()
    mailbox.assign.remote().future().result.return_value = (False, False)
    mailbox.post.remote().future().result.return_value = False
    messenger = ray_executor._Messenger(mailbox, 0, tmp_path, "node7")
    messenger._post()
    assert not messenger.stop.is_set()
    mailbox.post.remote().future().result.side_effect = ray.exceptions.RayActorError
    messenger._post()
    assert messenger.stop.is_set()


def test_a_lost_process_has_time_to_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor waits for the folder, but not forever, and not when all shall stop."""
    stop = threading.Event()
    waited: list[float] = []
    monkeypatch.setattr(stop, "wait", lambda seconds: bool(waited.append(seconds)))
    monkeypatch.setattr(ray_executor, "_FREE_SECONDS", 0.05)
    (tmp_path / "config.json").touch()
    write_heartbeat(tmp_path, "node7")
    ray_executor._wait_until_free(tmp_path, "node7", stop)
    assert not waited, "on the same machine the lock tells, and it is free"
    ray_executor._wait_until_free(tmp_path, "node8", stop)
    assert waited, "on another machine only the heartbeat tells"
    remove_heartbeat(tmp_path)
    waited.clear()
    ray_executor._wait_until_free(tmp_path, "node8", stop)
    assert not waited
    monkeypatch.setattr(ray_executor, "_FREE_SECONDS", 100.0)
    monkeypatch.setattr(stop, "wait", lambda seconds: True)
    with held(tmp_path):
        ray_executor._wait_until_free(tmp_path, "node7", stop)


# ---------------------------------------------------------------------- a cluster of three nodes

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without work, and two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 500, "health_check_initial_delay_ms": 0}
    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    head["_system_config"] = {**quick, "health_check_failure_threshold": 4}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**NODE)
    made.add_node(**NODE)
    yield made
    ray.shutdown()
    made.shutdown()


def options_for(cluster: Any) -> list[str]:
    """What makes a command use the cluster."""
    return ["--executor", "ray", "--address", cluster.address]


class Slow(torch.optim.SGD):
    """SGD that takes its time and notes each step in a file."""

    def __init__(self, params: Any, lr: float = 0.05, log: str = "", pause: float = 0.1) -> None:
        super().__init__(params, lr=lr, momentum=0.9)
        self.log, self.pause = log, pause

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.pause)
        with Path(self.log).open("a") as log:
            log.write("step\n")
        return super().step(closure)


@pytest.fixture(scope="module")
def slow_comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A slow optimizer, its log, and a local comparison with it."""
    folder = tmp_path_factory.mktemp("slow")
    log = folder / "steps"
    name = f"{__name__}:Slow:log={log}"
    assert run_compare(folder / "local", name, *SLOW) == 0
    return name, log, folder / "local"


SLOW = ["--seeds", "2", "--save-seconds", "0", "--epochs", "8"]


@pytest.mark.slow
def test_started_here_and_finished_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    optimizers = "sgd:lr=0.05,lpsgdm:lr=0.01"
    assert run_compare(tmp_path / "local", optimizers, "--seeds", "2") == 0
    mixed = tmp_path / "mixed"
    train(small_recipe("lpsgdm:lr=0.01", seed=1), mixed / "runs/lpsgdm/seed-1", label="lpsgdm")
    with pytest.raises(Interrupted):
        stop: Any = StopAfter(5)
        train(small_recipe("sgd:lr=0.05"), mixed / "runs/sgd/seed-0", label="sgd", stop=stop)
    assert run_compare(mixed, optimizers, "--seeds", "2", *options_for(cluster)) == 0
    for label in ("sgd", "lpsgdm"):
        for seed in (0, 1):
            run = f"runs/{label}/seed-{seed}"
            assert_same_run(tmp_path / "local" / run, mixed / run)
            assert read(tmp_path / "local" / run, "config.json") == read(mixed / run, "config.json")
    assert not [*mixed.rglob(".alive"), *mixed.rglob("error.json")]


@pytest.mark.slow
def test_a_sweep_finds_the_same_on_a_cluster(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.toml"
    space.write_text("[sgd]\nlr = [0.01, 0.1]\n[lpsgdm]\nlr = [0.001, 0.01]\n")
    found = []
    for name, options in (("local", ["--jobs", "2"]), ("ray", options_for(cluster))):
        command = ["sweep", *SMALL_FLAGS, "--space", str(space), "--pruner", "halving", "--json"]
        assert cli.main([*command, "--out", str(tmp_path / name), *options]) == 0
        found.append(json.loads(capsys.readouterr().out.replace(str(tmp_path / name), "here")))
    assert found[0] == found[1]
    assert len([*(tmp_path / "ray").rglob("metrics.jsonl")]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["node", "worker"])
def test_what_is_lost_resumes_elsewhere(
    cluster: Any,
    slow_comparison: tuple[str, Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lost: str,
) -> None:
    """To the same numbers, and from the checkpoint, not from the beginning."""
    name, log, local = slow_comparison
    out = tmp_path / "out"
    runs = [out / f"runs/Slow/seed-{seed}" for seed in (0, 1)]

    def lose() -> None:
        at_work: list[int] = []
        while not at_work:  # whichever begins first; the other may still start its worker
            time.sleep(0.05)
            begun = [run for run in runs if (run / "metrics.jsonl").exists()]
            at_work = [pid for run in begun for pid in processes_holding(run)]
        if lost == "node":
            cluster.remove_node(node_of(cluster, at_work[0]), allow_graceful=False)
        else:
            os.kill(at_work[0], signal.SIGKILL)

    before = len(log.read_text().splitlines())
    with _meanwhile(lose):
        assert run_compare(out, name, *SLOW, *options_for(cluster)) == 0
    if lost == "node":
        cluster.add_node(**NODE)
    for run in runs:
        assert_same_run(local / run.relative_to(out), run)
    steps = len(log.read_text().splitlines()) - before
    assert 64 <= steps <= 67, "one run lost the step that it was in, and nothing else"
    told = capsys.readouterr().err
    assert told.count("its worker was lost; it resumes from its checkpoint") == 1


def node_of(cluster: Any, worker: int) -> Any:
    """The node whose raylet started a process."""
    parent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    (found,) = [
        node
        for node in cluster.list_all_nodes()
        if node.all_processes["raylet"][0].process.pid == parent
    ]
    return found


class _meanwhile:
    """Do something in a thread meanwhile, and see that it worked."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._do, args=(work,))

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self._problem = problem

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        assert self._problem is None, self._problem


@pytest.mark.slow
def test_a_run_that_kills_its_worker_fails_in_the_end(
    cluster: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_executor, "RETRIES", 1)
    optimizers = f"sgd:lr=0.05,{kill_own_process.__module__}:kill_own_process"
    assert run_compare(tmp_path / "out", optimizers, "--seeds", "1", *options_for(cluster)) == 1
    told = capsys.readouterr().err
    assert "1 runs failed" in told
    assert "kill_own_process seed 0: its worker was lost 2 times: " in told
    assert read(tmp_path / "out/runs/sgd/seed-0", "result.json")["state"] == "complete"
    assert (
        "lost 2 times" in read(tmp_path / "out/runs/kill_own_process/seed-0", "error.json")["text"]
    )


@pytest.mark.slow
def test_wrong_input_is_said_once(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--seeds", "3", "--data", "nonsense=1", *options_for(cluster)]
    assert run_compare(tmp_path / "out", "sgd,adamw", *options) == 2
    told = capsys.readouterr().err
    assert "lpsgd: " in told
    assert "nonsense" in told
    assert not [*(tmp_path / "out").rglob("config.json")]


@pytest.mark.slow
def test_ctrl_c_saves_what_is_trained(cluster: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "lpsgd", "compare", "--width", "8", "--optimizers", "sgd"]
    command += ["--epochs", "1000", "--seeds", "3", "--out", str(out), *options_for(cluster)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    runs = [out / f"runs/sgd/seed-{seed}" for seed in (0, 1)]
    wait_until(lambda: all((run / "metrics.jsonl").exists() for run in runs))
    for _ in range(40):
        assert not (out / "runs/sgd/seed-2").exists(), "there is room for two runs"
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, told = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "the same command resumes" in told
    assert "Traceback" not in told
    assert all([*(run / "checkpoints").glob("*.pt")] for run in runs)
    assert not (out / "runs/sgd/seed-2").exists(), "what waited did not begin"
    assert not processes_holding(out)


def test_reproduce_takes_the_same_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "decay", "--scale", "smoke", "--out", str(tmp_path)]
    assert cli.main([*command, "--address", "auto"]) == 2
    assert "--address auto needs --executor ray" in capsys.readouterr().err
