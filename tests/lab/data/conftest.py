"""Shared by the tests of the data: the real files, if there, and a server that breaks off."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lpsgd.lab.data import data_root
from lpsgd.lab.data.catalogue import Layout, entry


def require(layout: Layout, *splits: str) -> Path:
    """The data root, if the real files of these splits are there; else skip and say why."""
    missing = [
        path
        for file in layout.files
        if file.split in splits and not (path := data_root() / layout.folder / file.name).is_file()
    ]
    if missing:
        pytest.skip(f"needs the real {missing[0].name} in {missing[0].parent} (set LPSGD_DATA)")
    return data_root()


@pytest.fixture
def cifar10_root() -> Path:
    """The folder that holds the real CIFAR-10."""
    return require(entry("cifar10").layouts[0], "train", "test")


class BreakingServer:
    """Serves files from memory on 127.0.0.1 and can break off in the middle of one."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.break_after: list[int] = []  # bytes of each coming response before the line is cut
        self.ranges = True
        self.send_length = True
        self.status: int | None = None
        self.asked: list[int] = []  # the offset that each request asked for
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{name}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        offset = int(match[1]) if match else 0
        self.asked.append(offset)
        data = self.files.get(request.path.removeprefix("/"))
        if self.status or data is None:
            request.send_error(self.status or 404)
            return
        if not self.ranges:
            offset = 0
        if offset and offset >= len(data):
            request.send_error(416)
            return
        body = data[offset:]
        request.send_response(206 if offset else 200)
        if self.send_length:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        cut = self.break_after.pop(0) if self.break_after else len(body)
        request.wfile.write(body[:cut])
        request.close_connection = True

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server() -> Iterator[BreakingServer]:
    """A server of its own for each test."""
    running = BreakingServer()
    yield running
    running.close()
