"""Comparing files with the checksums that their authors published."""

from __future__ import annotations

import hashlib
from pathlib import Path


def md5(data: bytes) -> str:
    """The MD5 of ``data``: what the authors published; it finds damage, it is no signature."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def md5_of(path: Path) -> str:
    """The MD5 of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
