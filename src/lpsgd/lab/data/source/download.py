"""Downloads that a broken connection costs only what was not yet received, and MD5 checksums."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lpsgd.lab.errors import LabError

Report = Callable[[int, int | None], None]
"""Called with the bytes received so far and the bytes in all, if the server told."""

PIECE = 1 << 18


def download(
    url: str,
    path: Path,
    md5: str,
    *,
    report: Report = lambda done, total: None,
    attempts: int = 4,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Download ``url`` to ``path``, which appears only when it is complete and its MD5 is right.

    What was received lies in ``path.part``; a later call, or a retry within this one, resumes
    there. ``attempts`` counts failures in a row that brought no new byte, ``pause`` (doubled at
    each) is the wait after one, in seconds.
    """
    if path.is_file() and md5_of(path) == md5:
        return  # of a time when there was no room to unpack it
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A part of an older version of the file, or damage on the way, shows only at the end: then the
    # download starts once more, from nothing.
    found = ""
    for _ in range(2):
        _receive_all(url, part, report, attempts, pause, timeout)
        found = md5_of(part)
        if found == md5:
            part.replace(path)
            return
        part.unlink()
    raise LabError(f"{url} is not the published file: its md5 is {found}, should be {md5}")


def _receive_all(
    url: str, part: Path, report: Report, attempts: int, pause: float, timeout: float
) -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            return _receive(url, part, report, timeout)
        except urllib.error.HTTPError as error:
            error.close()
            reason: object = f"HTTP {error.code} {error.reason}"
            if error.code < 500:  # not there or not allowed: asking again does not help
                raise LabError(f"cannot download {url}: {reason}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
        failures = 0 if _size(part) > before else failures + 1
        if failures >= attempts:
            kept = f"; {_size(part)} bytes are kept in {part}" if _size(part) else ""
            raise LabError(f"cannot download {url}: {reason}{kept}")
        time.sleep(pause * 2 ** max(0, failures - 1))


def _receive(url: str, part: Path, report: Report, timeout: float) -> None:
    """One connection: append what the server sends from the end of ``part`` on."""
    offset = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and offset:  # nothing is left to send; the md5 will tell
            error.close()
            return
        raise
    with response:
        with _writing(part):
            stream = part.open("ab", buffering=0)  # so that closing writes nothing and cannot fail
        with stream:
            if offset and response.status != 206:  # this server sends all, whatever is asked
                stream.truncate(0)
                offset = 0
            length = response.headers.get("Content-Length")
            total = offset + int(length) if length else None
            done = offset
            report(done, total)
            while piece := response.read(PIECE):
                left = memoryview(piece)
                with _writing(part):
                    while left:
                        left = left[stream.write(left) :]
                done += len(piece)
                report(done, total)
            os.fsync(stream.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"the connection was lost at {done} of {total} bytes")


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """Tell an error of the disk from one of the network, after which the server is asked again."""
    try:
        yield
    except OSError as error:
        raise LabError(f"cannot write {part}: {error.strerror}") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def md5(data: bytes) -> str:
    """The MD5 of ``data``: what the authors published; it finds damage, it is no signature."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def md5_of(path: Path) -> str:
    """The MD5 of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
