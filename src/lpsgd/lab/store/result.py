"""result.json: how a run ended. Without it the run has not ended, and resumes."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from lpsgd.lab.errors import UserError
from lpsgd.lab.store.jsonio import read_json, write_json

_FILE = "result.json"


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
