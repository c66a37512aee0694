"""What is told of a run while it is trained, typed, and as lines of JSON between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from lpsgd.lab.errors import LabError
from lpsgd.lab.store.metrics_file import MetricsRow


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class AssignedEvent(_Event):
    """A process has been given the run, perhaps not the first one; ``host`` if it is elsewhere."""

    kind: Literal["assigned"] = "assigned"
    host: str | None = None


class StartEvent(_Event):
    """Training starts, from ``step`` on if it resumes."""

    kind: Literal["start"] = "start"
    step: int
    total_steps: int


class StepEvent(_Event):
    """So many steps are done. Some times a second, not after every step."""

    kind: Literal["step"] = "step"
    step: int


class EpochEvent(_Event):
    """An epoch is done; ``metrics`` is its line of metrics.jsonl."""

    kind: Literal["epoch"] = "epoch"
    metrics: MetricsRow


class WarningEvent(_Event):
    """Something that the user should know; training continues."""

    kind: Literal["warning"] = "warning"
    text: str


class CurvatureEvent(_Event):
    """What a measurement of the spectrum found, in one line."""

    kind: Literal["curvature"] = "curvature"
    text: str


class CurvatureProgressEvent(_Event):
    """How many Hessian-vector products of a measurement are done."""

    kind: Literal["curvature progress"] = "curvature progress"
    label: str
    done: int
    total: int


class EndEvent(_Event):
    """The run is complete, diverged or, for a search, paused, or had been before."""

    kind: Literal["end"] = "end"
    state: str
    epochs: int
    reason: str | None = None


class InterruptedEvent(_Event):
    """The run was asked to stop, and is saved."""

    kind: Literal["interrupted"] = "interrupted"
    text: str


class ErrorEvent(_Event):
    """The run failed; ``exit_code`` tells whether the user's input is to blame."""

    kind: Literal["error"] = "error"
    text: str
    exit_code: int = LabError.exit_code


FinalEvent = EndEvent | InterruptedEvent | ErrorEvent
"""The last event of a run is one of these, and no other is."""

RunEvent = (
    AssignedEvent
    | StartEvent
    | StepEvent
    | EpochEvent
    | WarningEvent
    | CurvatureEvent
    | CurvatureProgressEvent
    | FinalEvent
)
RunListener = Callable[[RunEvent], None]
"""Hears the events of one run."""

_EVENT: TypeAdapter[RunEvent] = TypeAdapter(Annotated[RunEvent, Field(discriminator="kind")])


def decode_event(line: str) -> RunEvent:
    """The event that a line of JSON encodes; a ValueError if it encodes none.

    >>> decode_event(StepEvent(step=3).model_dump_json())
    StepEvent(kind='step', step=3)
    """
    return _EVENT.validate_json(line)
