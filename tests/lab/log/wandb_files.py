"""What an offline run of Weights & Biases holds: records of its own protocol in LevelDB's log."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4


def read_history(path: Path) -> list[dict[str, Any]]:
    """The rows that were logged, by wandb's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
    return rows


def _records(data: bytes) -> list[bytes]:
    found, parts, place = [], b"", _HEADER  # the file begins with a header of the same length
    while place + _HEADER <= len(data):
        if _BLOCK - place % _BLOCK < _HEADER:  # the rest of a block that is too short for one
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + _HEADER])
        part = data[place + _HEADER : place + _HEADER + length]
        parts = part if kind in (_FULL, _FIRST) else parts + part
        if kind in (_FULL, _LAST):
            found.append(parts)
        place += _HEADER + length
    return found
