r"""c1, c2, c3 of Assumptions 5 and 6, measured.

Given the past, LPSGD's direction is u(∇f + σξ) and LPSGDM's u(βm + (1-β)∇f + (1-β)σξ) with
ξ standard normal: a known mean and a known scale. So E⟨∇f, u⟩ is an integral over one variable per
coordinate, computed by quadrature, because a sample mean would drown where ∇f is small. The norm in
the second assumption does not separate into coordinates and is a sample mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

from lpsgd.geometry import lp_direction
from lpsgd.lab.paper.theory.problems import Step

_DRAWS = 64
_NODES = 401
_REACH = 9.0  # deviations of the normal distribution that are integrated over


@dataclass(frozen=True)
class Moments:
    """At a set of visited points: |∇f|², E⟨∇f, u⟩ and E‖u‖_p² given the past."""

    squared: NDArray[np.float64]
    alignment: NDArray[np.float64]
    size: NDArray[np.float64]


@dataclass(frozen=True)
class Constants:
    """c1, c2, c3; ``pointwise`` tells whether c1 is a bound at every point or only on average."""

    c1: float
    c2: float
    c3: float
    pointwise: bool
    lowest_c1: float
    """The smallest E⟨∇f, u⟩/|∇f|² seen; not positive where Assumption 5 or 6 is broken."""


def expected_direction(mean: Tensor, scale: float, p: float, eps: float = 1e-8) -> Tensor:
    r"""E u(mean + scale·ξ) for each entry of ``mean``.

    The integral over y of u(y) φ((y - mean)/scale)/scale, with nodes y = s³ that crowd around 0,
    where u has its kink.

    >>> x = torch.tensor([0.1, -2.0], dtype=torch.float64)
    >>> torch.allclose(expected_direction(x, 0.5, 2.0), x, rtol=1e-6)  # u(y) = y at p = 2
    True
    """
    reach = float(mean.abs().max()) + _REACH * scale
    s, weight = _nodes()
    nodes = reach * s**3
    density = torch.exp(-0.5 * ((nodes - mean[..., None]) / scale) ** 2)
    density = density / (scale * math.sqrt(2 * math.pi))
    integrand: Tensor = lp_direction(nodes, p, eps) * density * (3 * reach * s**2 * weight)
    return integrand.sum(-1)


@cache
def _nodes() -> tuple[Tensor, Tensor]:
    s, weight = np.polynomial.legendre.leggauss(_NODES)
    return torch.from_numpy(s), torch.from_numpy(weight)


def measure(
    steps: Iterable[Step], *, noise: float, momentum: float | None = None, seed: int = 1
) -> Moments:
    """The moments at every step given (pass a subset of a walk: each costs a quadrature)."""
    draw = torch.Generator().manual_seed(seed)
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    for step in steps:
        keep = 0.0 if momentum is None else momentum
        mean, scale = keep * step.momentum + (1 - keep) * step.gradient, (1 - keep) * noise
        alignment = (step.gradient * expected_direction(mean, scale, step.p)).sum(-1)
        shape = (_DRAWS, *mean.shape)
        random = torch.randn(shape, generator=draw, dtype=mean.dtype)
        directions = lp_direction(mean + scale * random, step.p)
        size = torch.linalg.vector_norm(directions, step.p, dim=-1).square().mean(0)
        columns.append(((step.gradient**2).sum(-1), alignment, size))
    return Moments(*(torch.cat(parts).numpy() for parts in zip(*columns, strict=True)))


def fit(pilot: Moments) -> Constants:
    """The best constants that hold on a pilot: the largest c1, and the lowest line above E‖u‖².

    Where no positive c1 holds at every point, c1 is that of the sums, Σ E⟨∇f,u⟩ / Σ |∇f|², which is
    all that the proofs use once they have added up their steps.
    """
    lowest = float((pilot.alignment / pilot.squared).min())
    pointwise = lowest > 0
    c1 = lowest if pointwise else float(pilot.alignment.sum() / pilot.squared.sum())
    ones = np.ones_like(pilot.squared)
    line = linprog(
        c=[1.0, float(pilot.squared.mean())],
        A_ub=-np.stack([ones, pilot.squared], axis=1),
        b_ub=-pilot.size,
        bounds=[(1e-12, None), (1e-6, None)],
    )
    c2, c3 = (float(value) for value in np.asarray(line.x))
    return Constants(c1, c2, c3, pointwise, lowest)


def violations(run: Moments, constants: Constants) -> tuple[float, float]:
    """The share of points of another run at which c1, and c2 and c3, do not hold."""
    alignment = run.alignment < constants.c1 * run.squared * (1 - 1e-9)
    size = run.size > (constants.c2 + constants.c3 * run.squared) * (1 + 1e-9)
    return float(alignment.mean()), float(size.mean())
