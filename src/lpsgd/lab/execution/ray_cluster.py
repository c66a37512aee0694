"""Join a Ray cluster, and see what a run needs of it and whether it has that."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.execution.local import cores
from lpsgd.lab.execution.signals import handlers_restored
from lpsgd.lab.store.command_line import hide_passwords

if TYPE_CHECKING:
    from lpsgd.lab.plan import Task
    from lpsgd.lab.training.options import RunOptions

_CONNECT_SECONDS = 5.0
_OBJECT_STORE_BYTES = 100 * 2**20  # a few messages are all that goes through it


def connect(given: str | None) -> Any:
    """Return the module ``ray``, connected until this process ends: a plan may have many parts."""
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray needs Ray: pip install 'lpsgd[ray]'") from None
    if ray.is_initialized():
        return ray
    address = given or os.environ.get("RAY_ADDRESS") or "local"
    _check_address(address)
    if hide_passwords(sys.argv) != sys.argv:
        raise UserError(
            "--executor ray: Ray shows the command line of every job to all users of its cluster; "
            "keep the password out of it, in the environment ($LPSGD_STORAGE, $PGPASSWORD)"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # nodes import the same packages as this process, the user's own modules among them
    paths = [str(Path(path).absolute()) for path in sys.path]
    job = ray.job_config.JobConfig(code_search_path=paths)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        quiet |= {"include_dashboard": False, "num_cpus": cores()}
        quiet |= {"object_store_memory": _OBJECT_STORE_BYTES}
    try:
        with handlers_restored():  # Ray sets its own when it starts
            ray.init(address=address, job_config=job, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"--address {address}: cannot join the cluster: {reason} (a cluster that asks for a "
            "token wants RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN here too)"
        ) from None
    return ray


def _check_address(address: str) -> None:
    """Say quickly what Ray itself would say after minutes."""
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise UserError(f"--address {address}: write HOST:PORT of the cluster's head, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--address {address}: nothing answers there ({error}); `ray start --head` prints the "
            "address, and this machine must be a node of the cluster"
        ) from None


def needs(
    task: Task, choice: ExecutorChoice, options: RunOptions, nodes: Sequence[dict[str, float]]
) -> tuple[float, float]:
    """Return the CPUs and GPUs of a run."""
    device = task.recipe.device
    if device.startswith("cuda:"):
        raise UserError(f"device={device!r}: Ray chooses which GPU a run gets; write device=cuda")
    cpus, gpus = choice.cpus_per_run, choice.gpus_per_run
    if cpus is None:
        cpus = task.recipe.threads + options.workers
    if gpus is None:
        present = any(node.get("GPU", 0) > 0 for node in nodes)
        gpus = 1 if device == "cuda" or (device == "auto" and present) else 0
    return cpus, gpus


def check_room(
    cpus: float, gpus: float, nodes: Sequence[dict[str, float]], *, growing: bool
) -> None:
    """Refuse what no node can run; a cluster that others started may still grow."""
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return
    text = (
        f"a run needs {cpus:g} CPUs and {gpus:g} GPUs on one node (--cpus-per-run, "
        "--gpus-per-run), and no node has them"
    )
    if not growing:
        raise UserError(text)
    print(f"lpsgd: {text}; waiting for one that has", file=sys.stderr)
