"""Carry out runs on a Ray cluster, which queues them, finds room and retries what was lost.

Every run is one Ray task that trains in the run's folder, on storage that all nodes share. A task
whose worker or node dies is started again by Ray and goes on from the run's checkpoint. Events
come back through a mailbox, an actor beside the driver, whose answer tells a run to stop.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lpsgd
from lpsgd.lab.errors import UserError
from lpsgd.lab.execution.executor import LAST_EVENTS, RETRIES, ExecutorChoice, Listener
from lpsgd.lab.execution.job import carry_out_order, error_event, make_order
from lpsgd.lab.execution.local import cores
from lpsgd.lab.store.command_line import hide_passwords
from lpsgd.lab.store.files import writing
from lpsgd.lab.store.heartbeat import (
    HEARTBEAT_TIMEOUT,
    heartbeat_host,
    remove_heartbeat,
    write_heartbeat,
)
from lpsgd.lab.store.lock import is_held

if TYPE_CHECKING:
    from lpsgd.lab.plan import Task
    from lpsgd.lab.training.options import RunOptions

_POST_SECONDS = 1.0
_FREE_SECONDS = 120.0
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 60.0
_OBJECT_STORE_BYTES = 100 * 2**20  # a few messages are all that goes through it


class RayExecutor:
    """Hands all tasks to Ray at once; each task's last event is end, interrupted or error."""

    def __init__(self, choice: ExecutorChoice, options: RunOptions) -> None:
        self.choice = choice
        # nodes may have another working folder and another environment
        root = options.root or os.environ.get("LPSGD_DATA")
        self.options = replace(options, root=Path(root).expanduser().absolute() if root else None)

    def run(self, tasks: Sequence[Task], listen: Listener, stop: threading.Event) -> None:
        """Do all tasks. ``listen`` hears every event, in this thread; ``stop`` saves and ends."""
        ray = _connect(self.choice.address)
        _Plan(ray, self.choice, self.options, tasks, listen).run(stop)


class _Plan:
    """The tasks that Ray was given, and what was heard of them."""

    def __init__(
        self,
        ray: Any,
        choice: ExecutorChoice,
        options: RunOptions,
        tasks: Sequence[Task],
        listen: Listener,
    ) -> None:
        self.ray = ray
        self.tasks = tasks
        self.listen = listen
        self.begun: set[int] = set()
        self.stopping = False
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        needs = [_needs(task, choice, options, nodes) for task in tasks]
        for cpus, gpus in dict.fromkeys(needs):
            _check_room(cpus, gpus, nodes, growing=choice.address is not None)
        self.mailbox = _mailbox(ray)
        train = ray.remote(max_retries=RETRIES)(_train)
        self.waiting: dict[Any, int] = {}
        for number, (task, (cpus, gpus)) in enumerate(zip(tasks, needs, strict=True)):
            folder = task.folder.absolute()
            with writing(folder.parent):  # a node that does not see it shares no storage
                folder.parent.mkdir(parents=True, exist_ok=True)
            order = make_order(replace(task, folder=folder), options)
            order |= {"version": lpsgd.__version__, "working_folder": str(Path.cwd())}
            ref = train.options(num_cpus=cpus, num_gpus=gpus).remote(order, number, self.mailbox)
            self.waiting[ref] = number

    def run(self, stop: threading.Event) -> None:
        while self.waiting:
            ready, _ = self.ray.wait(list(self.waiting), timeout=0.2)
            self._hear()  # what a run told before it ended comes before its end
            for ref in ready:
                number = self.waiting.pop(ref)
                self.listen(self.tasks[number], self._ending(ref))
            if stop.is_set() and not self.stopping:
                self.stopping = True
                self._ask_to_stop()

    def _hear(self) -> None:
        for number, event in self.ray.get(self.mailbox.take.remote()):
            if event["event"] == "begin":
                if number in self.begun:
                    text = f"its worker was lost; it goes on from its checkpoint on {event['host']}"
                    self.listen(self.tasks[number], {"event": "warning", "text": text})
                self.begun.add(number)
            self.listen(self.tasks[number], event)

    def _ask_to_stop(self) -> None:
        """Runs that go on will save and end; those that wait are taken back."""
        self.ray.get(self.mailbox.ask_to_stop.remote())
        for ref, number in self.waiting.items():
            if number not in self.begun:
                self.ray.cancel(ref)

    def _ending(self, ref: Any) -> dict[str, Any]:
        exceptions = self.ray.exceptions
        try:
            event: dict[str, Any] = self.ray.get(ref)
            if event["event"] == "interrupted" and not self.stopping:
                return error_event(f"it lost touch with this command: {event['text']}")
            return event
        except exceptions.TaskCancelledError:
            return {"event": "interrupted", "text": "stopped before it began"}
        except exceptions.RayTaskError as error:
            return error_event(f"its worker failed: {str(error).strip().splitlines()[-1]}")
        except exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            return error_event(f"its worker was lost {RETRIES + 1} times: {reason}")


class Mailbox:
    """An actor beside the driver: runs post their events and learn whether to stop."""

    def __init__(self) -> None:
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._begun: set[int] = set()
        self._stopped = False

    def begin(self, number: int, host: str) -> tuple[bool, bool]:
        """Note a run's start; return whether it had begun before, and whether to stop."""
        again = number in self._begun
        self._begun.add(number)
        return again, self.post(number, [{"event": "begin", "host": host}])

    def post(self, number: int, events: list[dict[str, Any]]) -> bool:
        """Leave events of a run; return whether it should stop."""
        self._events += [(number, event) for event in events]
        return self._stopped

    def take(self) -> list[tuple[int, dict[str, Any]]]:
        """Return what was posted since the last call."""
        events, self._events = self._events, []
        return events

    def ask_to_stop(self) -> None:
        """From now on, tell every run to stop."""
        self._stopped = True


# ---------------------------------------------------------------------- on the nodes


def _train(order: dict[str, Any], number: int, mailbox: Any) -> dict[str, Any]:
    """Train one run on the node where Ray started this; return its last event."""
    host, folder = socket.gethostname(), Path(order["folder"])
    if problem := _unfit(order, folder, host):
        return error_event(problem, UserError.exit_code)
    with suppress(OSError):
        os.chdir(order["working_folder"])  # for a recipe that names a file
    with _Messenger(mailbox, number, folder, host) as messenger:
        if messenger.again:
            _wait_until_free(folder, host, messenger.stop)
        carry_out_order(order, messenger.stop, messenger.tell)
    return messenger.last


def _unfit(order: dict[str, Any], folder: Path, host: str) -> str | None:
    """Say why this node cannot train the run, if it cannot."""
    if order["version"] != lpsgd.__version__:
        return f"{host} has lpsgd {lpsgd.__version__}, but {order['version']} was asked for"
    if not folder.parent.is_dir():
        return f"{host} does not see {folder.parent}: put --out on storage that all nodes share"
    return None


def _wait_until_free(folder: Path, host: str, stop: threading.Event) -> None:
    """Give the process that was lost, if it still lives, time to notice, save and end.

    Of one on this machine the lock tells; of one elsewhere the mark, which it renews only while it
    reaches the mailbox.
    """
    deadline = time.monotonic() + _FREE_SECONDS
    while is_held(folder) or heartbeat_host(folder) not in (None, host):
        if time.monotonic() > deadline or stop.wait(0.5):
            return


class _Messenger:
    """Posts a run's events now and then; a run that cannot reach the mailbox saves and stops."""

    def __init__(self, mailbox: Any, number: int, folder: Path, host: str) -> None:
        self._mailbox = mailbox
        self._number, self._folder, self._host = number, folder, host
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._marked_at = 0.0
        self.stop = threading.Event()
        self.last: dict[str, Any] = {}
        self.again, stopped = _answer(mailbox.begin.remote(number, host))
        if stopped:
            self.stop.set()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> _Messenger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._post()
        remove_heartbeat(self._folder)

    def tell(self, event: dict[str, Any]) -> None:
        if event["event"] in LAST_EVENTS:
            self.last = event  # the task's own answer, which Ray never loses
            return
        with self._lock:
            if self._events and self._events[-1]["event"] == event["event"] == "step":
                self._events.pop()  # only the newest step is of interest
            self._events.append(event)

    def _serve(self) -> None:
        while not self._ended.wait(_POST_SECONDS):
            self._post()
            due = time.monotonic() - self._marked_at > HEARTBEAT_TIMEOUT / 4
            if due and not self.stop.is_set():
                write_heartbeat(self._folder, self._host)
                self._marked_at = time.monotonic()

    def _post(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        try:
            if _answer(self._mailbox.post.remote(self._number, events)):
                self.stop.set()
        except Exception:
            # cut off: somebody else may be told to do this run, so leave the folder to them
            self.stop.set()


def _answer(reference: Any) -> Any:
    """What a call returns. `ray.get` would tell Ray that this run's CPUs are free meanwhile."""
    return reference.future().result(timeout=_ANSWER_SECONDS)


# ---------------------------------------------------------------------- the cluster


def _connect(given: str | None) -> Any:
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
        with _signals_kept():
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


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the handlers that Ray replaces when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _needs(
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


def _check_room(
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


def _mailbox(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0)(Mailbox).options(scheduling_strategy=here).remote()
