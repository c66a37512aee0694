"""SIGINT and SIGTERM: handlers that are put back, and signals that ask a run to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Put the handlers back that the block, or what it calls, replaces."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_signals(*, patient: bool = False) -> Iterator[threading.Event]:
    """Give an event that SIGTERM and Ctrl-C set; a second signal ends the process at once.

    Not if ``patient``, for processes that get each signal twice: from the batch system, and again
    from torchrun, which ends those that take too long by SIGKILL.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # handlers belong to the main thread, whose business signals then are
        return

    def ask(number: int, frame: object) -> None:
        event.set()
        for known in () if patient else _SIGNALS:
            signal.signal(known, signal.SIG_DFL)

    with handlers_restored():
        for number in _SIGNALS:
            signal.signal(number, ask)
        yield event
