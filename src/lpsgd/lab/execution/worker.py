"""A process that trains the runs it is told to: one line of JSON for each, events come back.

``python -m lpsgd.lab.execution.worker`` is started by the executor. When its input ends
(because nothing is left, the user interrupted, or the parent died), the run in progress is saved
and it exits.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import Any

from lpsgd.lab.execution.job import carry_out_order
from lpsgd.lab.store.jsonio import encode


def main() -> None:
    """Train until the input ends."""
    # the channel is private: what libraries print goes to stderr
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_read_orders, args=(orders, stop), daemon=True).start()

    def tell(event: dict[str, Any]) -> None:
        try:
            channel.write(json.dumps(encode(event)) + "\n")
            channel.flush()
        except BrokenPipeError:
            stop.set()

    while not stop.is_set() and (order := orders.get()) is not None:
        carry_out_order(order, stop, tell)


def _read_orders(orders: queue.SimpleQueue[dict[str, Any] | None], stop: threading.Event) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    stop.set()
    orders.put(None)


if __name__ == "__main__":
    main()
