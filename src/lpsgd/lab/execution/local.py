"""Run tasks in worker processes of this machine, several at once.

A run is the same whichever process trains it and however many run beside it, because device,
threads and seeds are part of its recipe. A process that dies takes only its own run with it, which
is tried again from its last checkpoint.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lpsgd.lab.events import (
    AssignedEvent,
    EndEvent,
    ErrorEvent,
    FinalEvent,
    InterruptedEvent,
    RunEvent,
    WarningEvent,
    decode_event,
)
from lpsgd.lab.execution.executor import RETRIES, TaskListener
from lpsgd.lab.execution.worker import JobSpec
from lpsgd.lab.formatting import signal_name
from lpsgd.lab.plan import Task

if TYPE_CHECKING:
    from lpsgd.lab.training.options import RunOptions

# glibc returns freed memory to the system, so that every step maps and clears the pages of its
# activations anew; up to these bytes it keeps them. Other C libraries ignore it.
KEEP_FREED = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


def default_jobs(task: Task) -> int:
    """How many runs are trained at once on this machine: one on a GPU, else cores / threads."""
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
    """Runs ``jobs`` tasks at a time, each in a process of its own."""

    def __init__(self, jobs: int, options: RunOptions, problem: Path | None = None) -> None:
        self.jobs = jobs
        self.options = options
        self.problem = problem

    def run(self, tasks: Sequence[Task], listen: TaskListener, stop: threading.Event) -> None:
        """Run all tasks. ``listen`` hears every event, in this thread; ``stop`` saves and ends."""
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        heard: queue.SimpleQueue[tuple[Task, RunEvent] | None] = queue.SimpleQueue()
        pool = _kept_pool or WorkerPool()
        threads = [
            threading.Thread(target=self._serve, args=(waiting, heard, pool, stop), daemon=True)
            for _ in tasks[: self.jobs]
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            if stop.is_set():
                pool.interrupt()
            try:
                item = heard.get(timeout=0.2)  # wakes up so that signals are handled
            except queue.Empty:
                continue
            if item is None:
                running -= 1
            else:
                listen(*item)
        if pool is not _kept_pool:
            pool.close()

    def _serve(
        self,
        waiting: queue.SimpleQueue[Task],
        heard: queue.SimpleQueue[tuple[Task, RunEvent] | None],
        pool: WorkerPool,
        stop: threading.Event,
    ) -> None:
        """Run one task after another until none waits; None is put last, whatever happens."""
        try:
            while not stop.is_set():
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    break
                try:
                    for event in self._run_task(task, pool, stop):
                        heard.put((task, event))
                except Exception as error:  # a defect here: this run failed, the next one may not
                    traceback.print_exc()
                    heard.put((task, ErrorEvent(text=f"{type(error).__name__}: {error}")))
        finally:
            heard.put(None)

    def _run_task(self, task: Task, pool: WorkerPool, stop: threading.Event) -> Iterator[RunEvent]:
        """The events of one run, which is tried again if its process is lost."""
        job = JobSpec(
            recipe=task.recipe,
            folder=task.folder,
            label=task.label,
            options=self.options,
            problem=self.problem,
        )
        for left in reversed(range(1 + RETRIES)):
            try:
                worker = pool.acquire()
            except OSError as error:  # no memory, no room for another process or file
                reason = error.strerror or error
                yield ErrorEvent(text=f"no process could be started for it: {reason}")
                return
            yield AssignedEvent()
            try:
                last = yield from worker.run_job(job)
                lost = not worker.usable and not stop.is_set()
            except BaseException:
                worker.end_input()  # what it still says belongs to this run
                raise
            finally:
                pool.release(worker)
            if isinstance(last, EndEvent) or not lost:
                yield last
                return
            if left == 0:
                yield ErrorEvent(text=last.text)
            else:
                yield WarningEvent(text=f"{last.text}; it resumes from its last checkpoint")


class WorkerPool:
    """Processes that train; one without work is kept for the next job."""

    def __init__(self) -> None:
        self._idle: list[WorkerProcess] = []
        self._busy: list[WorkerProcess] = []
        self._lock = threading.Lock()

    def acquire(self) -> WorkerProcess:
        """A process that is ready: an idle one, else a new one."""
        with self._lock:
            while self._idle:
                if (worker := self._idle.pop()).alive():
                    break
                worker.close()
            else:
                worker = WorkerProcess()
            self._busy.append(worker)
            return worker

    def release(self, worker: WorkerProcess) -> None:
        """Take back a process: for the next job, or to its end if it takes no more."""
        with self._lock:
            self._busy.remove(worker)
            if worker.usable:
                self._idle.append(worker)
                return
        worker.close()

    def interrupt(self) -> None:
        """Tell the processes at work to save and end."""
        with self._lock:
            for worker in self._busy:
                worker.end_input()

    def close(self) -> None:
        """End the processes, which are all idle."""
        for worker in self._idle:
            worker.end_input()  # all before the first is waited for
        for worker in self._idle:
            worker.close()


_kept_pool: WorkerPool | None = None


@contextmanager
def keeping_workers() -> Iterator[None]:
    """Inside, processes outlive one list of runs: starting them takes seconds."""
    global _kept_pool
    pool = _kept_pool = WorkerPool()
    try:
        yield
    finally:
        _kept_pool = None
        pool.close()


class WorkerProcess:
    """One process of `lpsgd.lab.execution.worker`."""

    def __init__(self) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        try:
            process = subprocess.Popen(
                # not from the current folder, where a random.py may lie, unless this process does
                [sys.executable, "-P", "-m", "lpsgd.lab.execution.worker"],
                env={
                    **KEEP_FREED,
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
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
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def usable(self) -> bool:
        """Whether it takes another job: it was not told to end, and did not end by itself."""
        return not self._input.closed

    def run_job(self, job: JobSpec) -> Generator[RunEvent, None, FinalEvent]:
        """Yield the events of one run, and return the last one, which says how it ended."""
        # if it died or was told to stop, what it answers says so
        with suppress(BrokenPipeError, ValueError):
            self._input.write(job.model_dump_json() + "\n")
            self._input.flush()
        for line in self._output:
            if not line.endswith("\n"):
                break  # it was killed in the middle of a word
            event = decode_event(line)
            if isinstance(event, InterruptedEvent):
                self.end_input()  # it is about to end
            if isinstance(event, FinalEvent):
                return event
            yield event
        self.end_input()
        return self._death()

    def end_input(self) -> None:
        """Tell the process to save what it trains, and to end."""
        with suppress(BrokenPipeError):
            self._input.close()

    def close(self) -> None:
        """End the input, wait for the process to save and exit."""
        self.end_input()
        self._process.wait()
        self._output.close()
        self._errors.close()

    def _death(self) -> FinalEvent:
        code = self._process.wait()
        if code == 0:
            return InterruptedEvent(text="the process that trained it ended")
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return ErrorEvent(text=": ".join([f"the process that trained it {how}", *last]))
