"""Theorems 1 and 2: bound and measured mean squared gradient over three decades of T."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lpsgd import CosineP
from lpsgd.lab.analysis.stats import Summary, summarise
from lpsgd.lab.paper.theory.constants import Constants, fit, measure, violations
from lpsgd.lab.paper.theory.problems import Problem, Step, power_law, walk, wells

P_MAX = 6.0
NOISE = 0.5
REPLICATES = 16
_EPOCHS = 10
_PILOT_STEPS = 1000
_SAMPLED = 100  # points of a walk at which the assumptions are looked at


@dataclass(frozen=True)
class RatePoint:
    """One horizon T: the theorem's step size and bound, and what was measured."""

    horizon: int
    lr: float
    bound: float
    measured: Summary
    c1_violated: float
    c23_violated: float


@dataclass(frozen=True)
class Rate:
    """One theorem: constants of the pilot, the points, the slope of log mean against log T."""

    theorem: str
    constants: Constants
    smoothness: float
    gap: float
    points: list[RatePoint]
    slope: Summary


def problem() -> Problem:
    """Wells of different depths, started half-way up, where the function is not convex."""
    return wells(power_law(20, 1.0), torch.linspace(0.5, 1.5, 20, dtype=torch.float64))


def measure_rates(
    horizons: Sequence[int], tell: Callable[[str], None] = lambda text: None
) -> list[Rate]:
    """Both theorems for every horizon; ``tell`` is told which one is next."""
    return [
        _rate("Theorem 1 (LPSGD)", horizons, None, tell),
        _rate("Theorem 2 (LPSGDM)", horizons, 0.9, tell),
    ]


def _rate(
    theorem: str, horizons: Sequence[int], momentum: float | None, tell: Callable[[str], None]
) -> Rate:
    f = problem()
    smoothness = f.smoothness(P_MAX)
    gap = float(f.value(f.start)) - f.lowest
    pilot, _ = _walk(f, _PILOT_STEPS, 0.05 / smoothness, momentum, seed=1)
    constants = fit(measure(pilot, noise=NOISE, momentum=momentum))
    points, means = [], []
    for horizon in horizons:
        tell(f"{theorem}, T = {horizon:,}")
        point, mean = _point(f, horizon, constants, gap, momentum)
        points.append(point)
        means.append(mean)
    return Rate(theorem, constants, smoothness, gap, points, _slope(horizons, np.stack(means)))


def _point(
    f: Problem, horizon: int, constants: Constants, gap: float, momentum: float | None
) -> tuple[RatePoint, NDArray[np.float64]]:
    smoothness = f.smoothness(P_MAX)
    c1, c2, c3 = constants.c1, constants.c2, constants.c3
    lr = min(c1 / (smoothness * c3), math.sqrt(2 * gap / (smoothness * c2 * horizon)))
    bound = 2 * gap / (lr * c1 * horizon) + smoothness * lr * c2 / c1
    visited, squared = _walk(f, horizon, lr, momentum, seed=2)
    moments = measure(visited, noise=NOISE, momentum=momentum)
    share1, share23 = violations(moments, constants)
    summary = summarise([float(value) for value in squared])
    return RatePoint(horizon, lr, bound, summary, share1, share23), squared


def _walk(
    f: Problem, steps: int, lr: float, momentum: float | None, seed: int
) -> tuple[list[Step], NDArray[np.float64]]:
    """Some hundred steps of a walk, and each replicate's mean squared gradient over all of it."""
    epochs = min(_EPOCHS, steps)
    schedule = CosineP(P_MAX, total_epochs=epochs, steps_per_epoch=math.ceil(steps / epochs))
    every = max(1, steps // _SAMPLED)
    kept, total = [], torch.zeros(REPLICATES, dtype=torch.float64)
    steps_taken = walk(
        f,
        steps=steps,
        lr=lr,
        p=schedule,
        momentum=momentum,
        noise=NOISE,
        replicates=REPLICATES,
        seed=seed,
    )
    for t, step in enumerate(steps_taken):
        total += (step.gradient**2).sum(-1)
        if t % every == 0:
            kept.append(step)
    return kept, (total / steps).numpy()


def _slope(horizons: Sequence[int], means: NDArray[np.float64]) -> Summary:
    """The least-squares slope of each replicate, summarised with its interval."""
    slopes = np.polyfit(np.log(horizons), np.log(means), 1)[0]
    return summarise([float(slope) for slope in slopes])
