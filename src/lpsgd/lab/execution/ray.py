"""Run tasks on a Ray cluster, which queues them, finds room and retries what was lost.

Every run is one Ray task that trains in the run's folder, on storage that all nodes share. A task
whose worker or node dies is started again by Ray and resumes from the run's checkpoint. Events
come back through a mailbox, an actor beside the driver, whose answer tells a run to stop.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lpsgd
from lpsgd.lab.errors import UserError
from lpsgd.lab.events import (
    AssignedEvent,
    ErrorEvent,
    FinalEvent,
    InterruptedEvent,
    RunEvent,
    WarningEvent,
)
from lpsgd.lab.execution.executor import RETRIES, ExecutorChoice, TaskListener
from lpsgd.lab.execution.ray_cluster import check_room, connect, needs
from lpsgd.lab.execution.worker import JobSpec, run_job
from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.store.disk.lock import is_held
from lpsgd.lab.store.run_folder import (
    HEARTBEAT_TIMEOUT,
    heartbeat_host,
    remove_heartbeat,
    write_heartbeat,
)

if TYPE_CHECKING:
    from lpsgd.lab.plan import Task
    from lpsgd.lab.training.options import RunOptions

_POST_SECONDS = 1.0
_FREE_SECONDS = 120.0
_ANSWER_SECONDS = 60.0


class RayExecutor:
    """Submits all tasks to Ray at once, which starts as many as it has room for."""

    def __init__(self, choice: ExecutorChoice, options: RunOptions) -> None:
        self.choice = choice
        # nodes may have another working folder and another environment
        root = options.root or os.environ.get("LPSGD_DATA")
        self.options = replace(options, root=Path(root).expanduser().absolute() if root else None)

    def run(self, tasks: Sequence[Task], listen: TaskListener, stop: threading.Event) -> None:
        """Run all tasks. ``listen`` hears every event, in this thread; ``stop`` saves and ends."""
        ray = connect(self.choice.address)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        resources = [needs(task, self.choice, self.options, nodes) for task in tasks]
        for cpus, gpus in dict.fromkeys(resources):
            check_room(cpus, gpus, nodes, growing=self.choice.address is not None)
        submitted = _SubmittedTasks(ray, tasks, listen)
        for number, (cpus, gpus) in enumerate(resources):
            submitted.submit(number, self.options, num_cpus=cpus, num_gpus=gpus)
        submitted.wait(stop)


class _SubmittedTasks:
    """The tasks that Ray was given, and what was heard of them."""

    def __init__(self, ray: Any, tasks: Sequence[Task], listen: TaskListener) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.ray, self.tasks, self.listen = ray, tasks, listen
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.mailbox = ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote()
        self.train = ray.remote(max_retries=RETRIES)(_train)
        self.waiting: dict[Any, int] = {}
        self.assigned: set[int] = set()
        self.stopping = False

    def submit(self, number: int, options: RunOptions, **resources: float) -> None:
        """Put a task into Ray's queue."""
        task = self.tasks[number]
        folder = task.folder.absolute()
        with writing(folder.parent):  # a node that does not see it shares no storage
            folder.parent.mkdir(parents=True, exist_ok=True)
        job = JobSpec(recipe=task.recipe, folder=folder, label=task.label, options=options)
        here = (lpsgd.__version__, str(Path.cwd()))
        ref = self.train.options(**resources).remote(
            job.model_dump(mode="json"), *here, number, self.mailbox
        )
        self.waiting[ref] = number

    def wait(self, stop: threading.Event) -> None:
        """Tell what is heard until all tasks have ended."""
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
            if isinstance(event, AssignedEvent):
                if number in self.assigned:
                    text = f"its worker was lost; it resumes from its checkpoint on {event.host}"
                    self.listen(self.tasks[number], WarningEvent(text=text))
                self.assigned.add(number)
            self.listen(self.tasks[number], event)

    def _ask_to_stop(self) -> None:
        """Runs in training will save and end; those that wait are taken back."""
        self.ray.get(self.mailbox.ask_to_stop.remote())
        for ref, number in self.waiting.items():
            if number not in self.assigned:
                self.ray.cancel(ref)

    def _ending(self, ref: Any) -> FinalEvent:
        exceptions = self.ray.exceptions
        try:
            event: FinalEvent = self.ray.get(ref)
        except exceptions.TaskCancelledError:
            return InterruptedEvent(text="stopped before it began")
        except exceptions.RayTaskError as error:
            return ErrorEvent(text=f"its worker failed: {str(error).strip().splitlines()[-1]}")
        except exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            return ErrorEvent(text=f"its worker was lost {RETRIES + 1} times: {reason}")
        if isinstance(event, InterruptedEvent) and not self.stopping:
            return ErrorEvent(text=f"it lost the connection to this command: {event.text}")
        return event


class Mailbox:
    """An actor beside the driver: runs post their events and learn whether to stop."""

    def __init__(self) -> None:
        self._events: list[tuple[int, RunEvent]] = []
        self._assigned: set[int] = set()
        self._stopped = False

    def assign(self, number: int, host: str) -> tuple[bool, bool]:
        """Note who has a run; return whether somebody had it before, and whether to stop."""
        again = number in self._assigned
        self._assigned.add(number)
        return again, self.post(number, [AssignedEvent(host=host)])

    def post(self, number: int, events: list[RunEvent]) -> bool:
        """Leave events of a run; return whether it should stop."""
        self._events += [(number, event) for event in events]
        return self._stopped

    def take(self) -> list[tuple[int, RunEvent]]:
        """Return what was posted since the last call."""
        events, self._events = self._events, []
        return events

    def ask_to_stop(self) -> None:
        """From now on, tell every run to stop."""
        self._stopped = True


# ---------------------------------------------------------------------- on the nodes


def _train(
    values: dict[str, Any], version: str, working_folder: str, number: int, mailbox: Any
) -> FinalEvent:
    """Train one job on the node where Ray started this; return its last event."""
    host, folder = socket.gethostname(), Path(values["folder"])
    if problem := _unfit(version, folder, host):
        return ErrorEvent(text=problem, exit_code=UserError.exit_code)
    with suppress(OSError):
        os.chdir(working_folder)  # for a recipe that names a file
    with _Messenger(mailbox, number, folder, host) as messenger:
        if messenger.again:
            _wait_until_free(folder, host, messenger.stop)
        run_job(JobSpec.model_validate(values), messenger.stop, messenger.listen)
    assert messenger.last is not None
    return messenger.last


def _unfit(version: str, folder: Path, host: str) -> str | None:
    """Say why this node cannot train the run, if it cannot."""
    if version != lpsgd.__version__:
        return f"{host} has lpsgd {lpsgd.__version__}, but {version} was asked for"
    if not folder.parent.is_dir():
        return f"{host} does not see {folder.parent}: put --out on storage that all nodes share"
    return None


def _wait_until_free(folder: Path, host: str, stop: threading.Event) -> None:
    """Give the process that was lost, if it still lives, time to notice, save and end.

    Of one on this machine the lock tells; of one elsewhere the heartbeat, which it renews only
    while it reaches the mailbox.
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
        self._events: list[RunEvent] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beat_at = 0.0
        self.stop = threading.Event()
        self.last: FinalEvent | None = None
        self.again, stopped = _answer(mailbox.assign.remote(number, host))
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

    def listen(self, event: RunEvent) -> None:
        if isinstance(event, FinalEvent):
            self.last = event  # the task's own answer, which Ray never loses
            return
        with self._lock:
            if self._events and self._events[-1].kind == event.kind == "step":
                self._events.pop()  # only the newest step is of interest
            self._events.append(event)

    def _serve(self) -> None:
        while not self._ended.wait(_POST_SECONDS):
            self._post()
            due = time.monotonic() - self._beat_at > HEARTBEAT_TIMEOUT / 4
            if due and not self.stop.is_set():
                write_heartbeat(self._folder, self._host)
                self._beat_at = time.monotonic()

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
