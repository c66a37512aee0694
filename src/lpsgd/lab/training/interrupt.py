"""Asking a run to stop, by a signal, so that it is saved and can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lpsgd.lab.errors import LabError


class Interrupted(LabError):
    """The run was asked to stop; it is saved and the same command resumes it."""


@contextmanager
def stop_on_signals(*, patient: bool = False) -> Iterator[threading.Event]:
    """Give an event that SIGTERM and Ctrl-C set; a second signal ends the process at once.

    Not if ``patient``, for processes that get each signal twice: from the batch system, and again
    from torchrun, which ends those that take too long by SIGKILL.
    """
    event = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: object) -> None:
        event.set()
        for known in () if patient else before:
            signal.signal(known, signal.SIG_DFL)

    for number in before:
        signal.signal(number, ask)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
