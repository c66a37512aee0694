"""Commands that are killed at random moments and given again, until they are done.

Each must end as if nobody had disturbed it: the same metrics, weights and state to the last bit,
the same winners of a sweep, the same files of a data set, and nothing half-written beside them.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.small_runs import assert_same_run

SMALL = "--epochs 6 --width 8 --train-size 256 --test-size 64 --batch-size 32 --save-seconds 0"
SPACE = "[sgd]\nlr = [0.01, 0.03, 0.1]\n[lpsgdm]\nlr = [0.003, 0.01, 0.03]\n"
COMMANDS = {
    "train": f"train --optimizer lpsgdm:lr=1e-2 {SMALL} --out",
    "compare": f"compare --optimizers sgd,lpsgdm --seeds 2 --jobs 1 {SMALL} --out",
    "sweep": f"sweep --space space.toml --pruner halving --trials 3 --jobs 1 {SMALL} --out",
}


def kill_command(name: str, draw: random.Random, folder: Path) -> int:
    """Run a command undisturbed and disturbed in ``folder``; return how often it was killed."""
    (folder / "space.toml").write_text(SPACE)
    command = [sys.executable, "-m", "lpsgd", *COMMANDS[name].split()]
    began = time.monotonic()
    subprocess.run([*command, "whole"], cwd=folder, check=True, capture_output=True)
    kills = _until_done([*command, "parts"], draw, folder, time.monotonic() - began)
    whole, parts = folder / "whole", folder / "parts"
    runs = [path.parent.relative_to(whole) for path in sorted(whole.rglob("result.json"))]
    assert runs, "the undisturbed command has trained nothing"
    for run in runs:
        assert_same_run(whole / run, parts / run)
    if name == "sweep":
        assert _outcome(whole) == _outcome(parts)
    left = [path for path in parts.rglob("*.part") if path.parent.name != "checkpoints"]
    assert not left, left
    return kills


def _outcome(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "outcome.json").read_text())
    return {name: value for name, value in found.items() if name != "folder"}


def _until_done(command: list[str], draw: random.Random, folder: Path, seconds: float) -> int:
    """Start the command again and again, killing it and all that it started; return the kills."""
    for kills in range(100):
        # less and less disturbed, so that it comes to its end
        patience = draw.uniform(0, seconds * (0.5 + kills / 4))
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, told = child.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            continue
        assert child.returncode == 0, told.decode()
        return kills
    raise AssertionError("it was never left alone for long enough")


# ---------------------------------------------------------------------- data get

GET = """
import sys
from lpsgd.lab.cli import app
from lpsgd.lab.data import catalogue
from tests.lab.fuzz.kills import small_layout

catalogue._ENTRIES["cifar10"] = small_layout(sys.argv[1])
sys.exit(app.main(["data", "get", "cifar10", "--root", sys.argv[2]]))
"""
NAMES = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]


def content(name: str) -> bytes:
    """What a file of the data set holds: 2 MB that do not compress."""
    return random.Random(name).randbytes(2_000_000)


@functools.cache
def archive() -> bytes:
    """The data set as it is published."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as made:
        for name in NAMES:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content(name))
            made.addfile(member, io.BytesIO(content(name)))
    # without the time of its making
    return stream.getvalue()[:4] + b"\0\0\0\0" + stream.getvalue()[8:]


def small_layout(url: str) -> object:
    """CIFAR-10's entry in the catalogue with the files above."""
    import dataclasses

    from lpsgd.lab.data import catalogue

    files = tuple(
        catalogue.PublishedFile(name, hashlib.md5(content(name)).hexdigest(), "train", 1)
        for name in NAMES
    )
    layout = dataclasses.replace(
        catalogue.entry("cifar10").layouts[0],
        url=url,
        md5=hashlib.md5(archive()).hexdigest(),
        files=files,
    )
    return dataclasses.replace(catalogue.entry("cifar10"), layouts=(layout,))


@contextmanager
def _serving(data: bytes) -> Iterator[str]:
    """An address on this machine that gives ``data``, slowly and from any place on."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            for place in range(start, len(data), 1 << 17):
                try:
                    self.wfile.write(data[place : place + (1 << 17)])
                except OSError:  # whoever asked was killed
                    return
                time.sleep(0.005)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def kill_data_get(draw: random.Random, folder: Path) -> int:
    """Kill `lpsgd data get` until it is done; return how often."""
    root = folder / "root"
    with _serving(archive()) as url:
        command = [sys.executable, "-c", GET, url]
        began = time.monotonic()
        subprocess.run([*command, str(folder / "whole")], check=True, capture_output=True)
        took = time.monotonic() - began
        kills = _until_done([*command, str(root)], draw, Path.cwd(), took)
    found = {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert found == {name: content(name) for name in NAMES}
    assert [path.name for path in root.iterdir()] == ["cifar-10-batches-bin"]
    shutil.rmtree(root)
    return kills


KILLERS: dict[str, Callable[[random.Random, Path], int]] = {
    **{name: functools.partial(kill_command, name) for name in COMMANDS},
    "data get": kill_data_get,
}
