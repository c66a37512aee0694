"""Locks end with their process, and looking at one changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from lpsgd.lab.store.disk import lock

HOLDER = """
import sys, time
from pathlib import Path
from lpsgd.lab.store.disk import lock
with lock.holding(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert lock.is_held(tmp_path)
        with lock.holding(tmp_path, seconds=0.15) as held:
            assert not held
        threading.Timer(0.2, os.kill, [holder.pid, signal.SIGKILL]).start()
        with lock.holding(tmp_path) as held:  # waits for as long as it takes
            assert held
    assert not lock.is_held(tmp_path)
    assert not [*tmp_path.iterdir()], "nothing is left in the folder"


def test_who_looks_is_not_taken_for_a_run(tmp_path: Path) -> None:
    import fcntl

    looker = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)  # as `is_held` does, but for longer
    assert not lock.is_held(tmp_path)
    os.close(looker)
    assert not lock.is_held(tmp_path / "absent")
