"""Events of a run: what one process encodes, another decodes."""

from __future__ import annotations

import math

import pytest

from lpsgd.lab.events import (
    AssignedEvent,
    CurvatureProgressEvent,
    EndEvent,
    EpochEvent,
    ErrorEvent,
    RunEvent,
    decode_event,
)
from lpsgd.lab.store.metrics_file import MetricsRow


@pytest.mark.parametrize(
    "event",
    [
        AssignedEvent(host="node7"),
        CurvatureProgressEvent(label="layer 1", done=1, total=9),
        EndEvent(state="diverged", epochs=3, reason="the loss became nan\nat step 7"),
        ErrorEvent(text="no disk", exit_code=2),
        EpochEvent(metrics=MetricsRow(epoch=1, p=math.inf, lr=0.1, val_nll=None)),
    ],
)
def test_an_event_is_the_same_after_its_journey(event: RunEvent) -> None:
    line = event.model_dump_json()
    assert "\n" not in line
    assert decode_event(line) == event


def test_a_score_may_be_nan() -> None:
    event = decode_event(
        EpochEvent(metrics=MetricsRow(epoch=1, test_nll=math.nan)).model_dump_json()
    )
    assert isinstance(event, EpochEvent)
    assert math.isnan(event.metrics.test_nll or 0.0)


@pytest.mark.parametrize(
    "line",
    ['{"kind": "nap"}', '{"step": 3}', '{"kind": "step", "stp": 3}', "[]", '{"kind": "st'],
)
def test_what_is_no_event_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        decode_event(line)
