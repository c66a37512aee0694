r"""Functions whose l_p smoothness is known, and walks of the real optimizers on them.

A function that is a sum over coordinates with :math:`|f_i''| \le b_i` satisfies, by Hölder with
exponents p/(p-2) and p/2,

.. math::
    |f(y) - f(x) - \langle\nabla f(x), y-x\rangle|
    \le \tfrac12 \sum_i b_i (y_i-x_i)^2 \le \tfrac12 \|b\|_{p/(p-2)} \|y-x\|_p^2,

so that :math:`L_p = \|b\|_{p/(p-2)}`: max b at p = 2, the sum of b at p = inf. For a diagonal
quadratic b is its curvature and this L_p is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from lpsgd import LPSGD, LPSGDM
from lpsgd.geometry import lp_norm
from lpsgd.schedule import PFunction


@dataclass(frozen=True)
class Problem:
    """A sum over coordinates, for many replicates at once: points are (replicates, dimensions)."""

    name: str
    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    bounds: Tensor
    """b_i, the largest |f_i''|."""
    start: Tensor
    lowest: float = 0.0

    def smoothness(self, p: float) -> float:
        """L_p (exact for quadratics, an upper bound otherwise)."""
        return smoothness(self.bounds, p)


def smoothness(bounds: Tensor, p: float) -> float:
    """||b||_{p/(p-2)}.

    >>> b = torch.tensor([3.0, 4.0], dtype=torch.float64)
    >>> smoothness(b, 2.0), smoothness(b, 4.0), smoothness(b, math.inf)
    (4.0, 5.0, 7.0)
    """
    if p == 2:
        return float(bounds.abs().max())
    exponent = 1.0 if math.isinf(p) else p / (p - 2)
    return float(lp_norm(bounds, exponent))


def quadratic(curvature: Tensor, start: Tensor) -> Problem:
    """f = sum of λ_i x_i² / 2."""
    return Problem(
        "diagonal quadratic",
        lambda x: 0.5 * (curvature * x**2).sum(-1),
        lambda x: curvature * x,
        curvature,
        start,
    )


def wells(depth: Tensor, start: Tensor) -> Problem:
    """f = sum of a_i x_i² / (1 + x_i²): not convex, with |f_i''| <= 2 a_i."""
    return Problem(
        "sum of wells a x²/(1 + x²)",
        lambda x: (depth * x**2 / (1 + x**2)).sum(-1),
        lambda x: 2 * depth * x / (1 + x**2) ** 2,
        2 * depth,
        start,
    )


def power_law(dimensions: int, top: float = 1.0) -> Tensor:
    """top / i for i = 1, ..., dimensions: a few large values and a long tail, as Hessians have."""
    return top / torch.arange(1, dimensions + 1, dtype=torch.float64)


@dataclass(frozen=True)
class Step:
    """One step of every replicate: where it was, the true gradient there, what it did."""

    before: Tensor
    gradient: Tensor
    momentum: Tensor
    """The buffer before the step; zeros for LPSGD."""
    after: Tensor
    p: float


def walk(
    problem: Problem,
    *,
    steps: int,
    lr: float,
    p: float | PFunction,
    momentum: float | None = None,
    weight_decay: float = 0.0,
    noise: float = 0.0,
    replicates: int = 8,
    seed: int = 0,
) -> Iterator[Step]:
    """Run LPSGD (LPSGDM with ``momentum``) with Gaussian gradient noise of that deviation."""
    theta = problem.start.expand(replicates, -1).clone()
    draw = torch.Generator().manual_seed(seed)
    optimizer: LPSGD = (
        LPSGD([theta], lr, p, weight_decay)
        if momentum is None
        else LPSGDM([theta], lr, momentum, p, weight_decay)
    )
    zeros = torch.zeros_like(theta)
    for _ in range(steps):
        before, gradient = theta.clone(), problem.gradient(theta)
        buffer = optimizer.state.get(theta, {}).get("momentum_buffer", zeros).clone()
        random = torch.randn(theta.shape, generator=draw, dtype=theta.dtype) if noise else 0.0
        theta.grad = gradient + noise * random
        optimizer.step()
        yield Step(before, gradient, buffer, theta.clone(), float(optimizer.param_groups[0]["p"]))


@contextmanager
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more threads and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
