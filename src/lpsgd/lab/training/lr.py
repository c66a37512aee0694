"""The learning rate as a function of the step: linear warm-up, then cosine or constant."""

from __future__ import annotations

import math


def lr_factor(
    step: int, *, total_steps: int, warmup_steps: int, schedule: str, end: float = 0.0
) -> float:
    """Return the learning rate of ``step`` (from 0) divided by its peak.

    Warm-up: (step+1)/(warmup_steps+1), so that the first step moves and the peak comes right after.
    Cosine, with x from 0 at the peak to 1 at the end of training:
    end + (1-end)(1+cos(pi x))/2.

    >>> [lr_factor(s, total_steps=5, warmup_steps=1, schedule="cosine") for s in (0, 1, 3)]
    [0.5, 1.0, 0.5]
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return end + (1 - end) * (1 + math.cos(math.pi * min(1.0, done))) / 2
