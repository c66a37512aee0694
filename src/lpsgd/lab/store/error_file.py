"""error.json: why a run failed, kept in its folder until it is started again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.jsonio import read_model, write_json

ERROR_FILE = "error.json"


class RunError(BaseModel):
    """What error.json holds."""

    version: int = 1
    text: str


def write_error(folder: Path, text: str) -> None:
    """Record why the run in ``folder`` failed."""
    with suppress(OSError):  # a disk that is full is what it may be about
        write_json(folder / ERROR_FILE, RunError(text=text).model_dump())


def read_error(folder: Path) -> str | None:
    """Return why the run in ``folder`` failed the last time, or None if it did not."""
    try:
        found = read_model(folder / ERROR_FILE, RunError)
    except UserError as error:
        return str(error)
    return None if found is None else found.text
