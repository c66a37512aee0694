"""Carry out runs in processes of this machine, several at once.

A run is the same whichever process trains it and however many run beside it, because device,
threads and seeds are part of its recipe. A process that dies takes only its own run with it, which
is tried again from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from lpsgd.lab.execution.executor import LAST_EVENTS, RETRIES, Listener
from lpsgd.lab.execution.job import error_event, make_order
from lpsgd.lab.plan import Task

if TYPE_CHECKING:
    from lpsgd.lab.training.options import RunOptions


def default_jobs(task: Task) -> int:
    """How many runs go on at once on this machine: one on a GPU, else cores / threads."""
    from lpsgd.lab.training.numerics import choose_device

    if choose_device(task.recipe.device).type != "cpu":
        return 1
    return max(1, cores() // task.recipe.threads)


def cores() -> int:
    """How many cores this process may use; all of them where the system does not say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalExecutor:
    """Runs tasks in ``jobs`` processes; each task's last event is end, interrupted or error."""

    def __init__(self, jobs: int, options: RunOptions) -> None:
        self.jobs = jobs
        self.options = options

    def run(self, tasks: Sequence[Task], listen: Listener, stop: threading.Event) -> None:
        """Do all tasks. ``listen`` hears every event, in this thread; ``stop`` saves and ends."""
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        events: queue.SimpleQueue[tuple[Task, dict[str, Any]] | None] = queue.SimpleQueue()
        crew = _Crew(_kept)
        threads = [
            threading.Thread(target=self._serve, args=(waiting, events, crew, stop), daemon=True)
            for _ in range(min(self.jobs, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            if stop.is_set():
                crew.end_inputs()
            try:
                item = events.get(timeout=0.2)  # wakes up so that signals are handled
            except queue.Empty:
                continue
            if item is None:
                running -= 1
            else:
                listen(*item)

    def _serve(
        self,
        waiting: queue.SimpleQueue[Task],
        events: queue.SimpleQueue[tuple[Task, dict[str, Any]] | None],
        crew: _Crew,
        stop: threading.Event,
    ) -> None:
        worker: _Worker | None = None
        try:
            while not stop.is_set():
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    break
                for left in reversed(range(1 + RETRIES)):
                    try:
                        worker = worker or crew.hire()
                    except OSError as error:  # no memory, no room for another process or file
                        text = f"no process could be started for it: {error.strerror or error}"
                        events.put((task, error_event(text)))
                        break
                    events.put((task, {"event": "begin"}))
                    lost = again = False
                    for event in worker.train(task, self.options):
                        lost = _is_lost(event, stop)
                        again = lost and left > 0 and not stop.is_set()
                        events.put((task, _of_lost(event, again) if lost else event))
                    if lost:
                        crew.dismiss(worker)
                        worker = None
                    if not again:
                        break
        finally:
            if worker is not None:
                crew.release(worker, fit=not stop.is_set())
            events.put(None)


def _is_lost(event: dict[str, Any], stop: threading.Event) -> bool:
    """Whether the process died, or saved and ended though nobody here asked it to."""
    return event["event"] == "lost" or (event["event"] == "interrupted" and not stop.is_set())


def _of_lost(event: dict[str, Any], again: bool) -> dict[str, Any]:
    """What is told of a run whose process was lost, and whether it is tried again."""
    if again:
        return {"event": "warning", "text": f"{event['text']}; it goes on from its last checkpoint"}
    return error_event(event["text"])


# Workers without work that the next runs may have; None where nobody keeps them.
_kept: list[_Worker] | None = None


@contextmanager
def keeping_workers() -> Iterator[None]:
    """Inside, processes outlive one list of runs: starting them takes seconds."""
    global _kept
    if _kept is not None:
        yield
        return
    _kept = []
    try:
        yield
    finally:
        idle, _kept = _kept, None
        for worker in idle:
            worker.close()


class _Crew:
    """The processes that carry out one list of runs."""

    def __init__(self, idle: list[_Worker] | None) -> None:
        self._idle = idle
        self._busy: list[_Worker] = []
        self._lock = threading.Lock()

    def hire(self) -> _Worker:
        """A process that is ready: one that was kept, else a new one."""
        with self._lock:
            while self._idle:
                if (kept := self._idle.pop()).alive():
                    break
                kept.close()
            else:
                kept = _Worker()
            self._busy.append(kept)
            return kept

    def release(self, worker: _Worker, *, fit: bool) -> None:
        """Keep a process for later, or end it."""
        if not fit or self._idle is None:
            self.dismiss(worker)
            return
        with self._lock:
            self._busy.remove(worker)
            self._idle.append(worker)

    def dismiss(self, worker: _Worker) -> None:
        """End a process."""
        with self._lock:
            self._busy.remove(worker)
        worker.close()

    def end_inputs(self) -> None:
        """Tell all to save and end."""
        with self._lock:
            for worker in self._busy:
                worker.end_input()


class _Worker:
    """One process of `lpsgd.lab.execution.worker`."""

    def __init__(self) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lpsgd.lab.execution.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                # Ctrl-C on the terminal reaches the parent alone, which then ends the input
                start_new_session=True,
            )
        except OSError:
            self._errors.close()
            raise

    def alive(self) -> bool:
        return self._process.poll() is None

    def train(self, task: Task, options: RunOptions) -> Iterator[dict[str, Any]]:
        """Yield the events of one run; the last one says how it ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(make_order(task, options)) + "\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it died or was told to stop; what follows says so
        for line in stdout:
            if not line.endswith("\n"):
                break  # it was killed in the middle of a word
            event = json.loads(line)
            yield event
            if event["event"] in LAST_EVENTS:
                return
        yield self._death()

    def close(self) -> None:
        """End the input, wait for the process to save and exit."""
        self.end_input()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def end_input(self) -> None:
        """Tell the process to save what it trains, and to end."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except BrokenPipeError:
            pass

    def _death(self) -> dict[str, Any]:
        code = self._process.wait()
        if code == 0:
            return {"event": "interrupted", "text": "the process that trained it ended"}
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return {"event": "lost", "text": ": ".join([f"the process that trained it {how}", *last])}
