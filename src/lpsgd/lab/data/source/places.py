"""Where data sets lie on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_root(given: str | Path | None = None) -> Path:
    """The folder of the data sets: ``given``, else $LPSGD_DATA, else the user's cache folder."""
    if given is not None:
        return Path(given).expanduser()
    if named := os.environ.get("LPSGD_DATA"):
        return Path(named).expanduser()
    return _cache() / "lpsgd" / "data"


def _cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Caches").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
