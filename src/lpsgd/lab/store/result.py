"""How a run ended: result.json, or error.json until a run that failed is started again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.disk.jsonio import read_json, read_object, write_json

_FILE = "result.json"
ERROR_FILE = "error.json"


class RunResult(BaseModel):
    """How a run ended, or that it paused; of a run that diverged, where."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    state: str
    epochs: int
    reason: str | None = None
    step: int | None = None
    lr: float | None = None
    p: float | None = None
    grad_norm: float | None = None
    state_bytes: int | None = None
    parameters: int | None = None


def write_result(folder: Path, result: RunResult) -> None:
    """Record how the run in ``folder`` ended."""
    write_json(folder / _FILE, result.model_dump())


def read_result(folder: Path) -> RunResult | None:
    """Return how the run in ``folder`` ended, or None while it has not."""
    path = folder / _FILE
    try:
        return RunResult.model_validate(read_json(path))
    except FileNotFoundError:
        return None
    except ValidationError:
        raise UserError(
            f"{path} is not the result of a run: it has no state and epochs. "
            "Remove it, and the run resumes from its last checkpoint"
        ) from None


def write_error(folder: Path, text: str) -> None:
    """Record why the run in ``folder`` failed."""
    with suppress(OSError):  # a disk that is full is what it may be about
        write_json(folder / ERROR_FILE, {"version": 1, "text": text})


def read_error(folder: Path) -> str | None:
    """Return why the run in ``folder`` failed the last time, or None if it did not."""
    try:
        found = read_object(folder / ERROR_FILE)
    except UserError as error:
        return str(error)
    return None if found is None else str(found.get("text"))
