"""``curvature.jsonl``: one line for each measurement, with all that is needed to redraw figures."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE_NAME = "curvature.jsonl"


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add one whole line and flush it to disk; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(_plain(record), allow_nan=False).encode() + b"\n"
    with path.open("ab+") as stream:
        # A process killed while writing leaves half a line; it must not swallow this one.
        if stream.tell() > 0:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """The records by epoch; the last of several for one epoch (a resumed run); no half lines.

    A whole line that is something else is a ValueError that names it.
    """
    by_epoch: dict[float, dict[str, Any]] = {}
    for place, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # half a line, or bytes that are no text
            continue
        epoch = record.get("epoch") if isinstance(record, dict) else None
        if isinstance(epoch, bool) or not isinstance(epoch, int | float):
            raise ValueError(f"{path}, line {place}: expected a record with its epoch")
        by_epoch[epoch] = record
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
