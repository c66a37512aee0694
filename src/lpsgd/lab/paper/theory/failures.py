"""Where the assumptions of the theorems fail, each shown by the smallest example."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from lpsgd import LPSGD, ConstantP, CosineP
from lpsgd.geometry import lp_direction
from lpsgd.lab.paper.theory.problems import power_law, quadratic, walk, wells

Array = NDArray[np.float64]
EXPONENTS = (2.0, 3.0, 6.0, math.inf)

# Mean 0 and variance 9, but nine times out of ten it pushes the same way.
SKEWED = ((9.0, 0.1), (-1.0, 0.9))


def alignment_by_scale(scales: Array) -> dict[float, Array]:
    """<g, u>/|g|² of a fixed direction at each scale and p: it falls as scale^(-rho)."""
    g = torch.from_numpy(scales)[:, None] * power_law(50)
    return {p: ((g * lp_direction(g, p)).sum(-1) / (g**2).sum(-1)).numpy() for p in EXPONENTS}


def overshoot(steps: int = 100) -> Array:
    """The cosine of ∇f and v along LPSGDM without noise on a quadratic.

    After it runs past the minimum, v points uphill.
    """
    start = torch.full((2,), 1.0, dtype=torch.float64)
    problem = quadratic(torch.tensor([2.0, 0.5], dtype=torch.float64), start)
    schedule = CosineP(6.0, total_epochs=steps, steps_per_epoch=1)
    cosines = []
    for step in walk(problem, steps=steps, lr=0.05, p=schedule, momentum=0.9, replicates=1):
        v, g = (step.before - step.after)[0], step.gradient[0]
        cosines.append(float(torch.dot(g, v) / (g.norm() * v.norm())))
    return np.array(cosines)


@dataclass(frozen=True)
class Skew:
    """f = x²/2 under skewed noise: E⟨∇f, u⟩ at x = 1/2, and where LPSGD settles."""

    alignment: dict[float, float]
    constant: Array
    annealed: Array
    settles_at: float


def skewed_noise(steps: int = 4000, replicates: int = 200, lr: float = 0.02) -> Skew:
    """LPSGD with p = 6 throughout settles far from the minimum; annealed to p = 2 it comes back."""
    here = 0.5
    alignment = {p: here * _expected(here, p) for p in EXPONENTS}
    runs = [
        _noisy_walk(p, steps, replicates, lr)
        for p in (ConstantP(6.0), CosineP(6.0, total_steps=steps))
    ]
    # where E u = 0, to which the mean of LPSGD is drawn
    settles_at = brentq(_expected, -9.0, 9.0, args=(6.0,))
    return Skew(alignment, runs[0], runs[1], settles_at)


def _expected(gradient: float, p: float) -> float:
    """E u(gradient + ξ) for the skewed noise."""
    values = torch.tensor([gradient + jump for jump, _ in SKEWED], dtype=torch.float64)
    weights = torch.tensor([probability for _, probability in SKEWED], dtype=torch.float64)
    return float((weights * lp_direction(values, p)).sum())


def _noisy_walk(schedule: ConstantP | CosineP, steps: int, replicates: int, lr: float) -> Array:
    """The mean position over replicates at each step."""
    draw = torch.Generator().manual_seed(0)
    theta = torch.zeros(replicates, dtype=torch.float64)
    optimizer = LPSGD([theta], lr, schedule)
    (high, chance), (low, _) = SKEWED
    means = []
    for _ in range(steps):
        jump = torch.rand(replicates, generator=draw, dtype=torch.float64) < chance
        theta.grad = theta + torch.where(jump, high, low)
        optimizer.step()
        means.append(float(theta.mean()))
    return np.array(means)


@dataclass(frozen=True)
class Decay:
    """One weight decay: the mean norm of the parameters over time, and the bound sup|v|/λ."""

    weight_decay: float
    norms: Array
    largest_entry: float
    bound: float | None


def decoupled_decay(steps: int = 1000, lr: float = 0.05) -> list[Decay]:
    """LPSGDM on noisy wells: θ ← (1-ηλ)θ - ηv keeps |θ_i| below max(|θ_0|, sup|v|/λ)."""
    start = torch.full((20,), 3.0, dtype=torch.float64)
    problem = wells(power_law(20), start)
    schedule = CosineP(6.0, total_epochs=20, steps_per_epoch=steps // 20)
    found = []
    for weight_decay in (0.0, 0.01, 0.1, 1.0):
        norms, largest_v, largest = [], 0.0, 0.0
        for step in walk(
            problem,
            steps=steps,
            lr=lr,
            p=schedule,
            momentum=0.9,
            weight_decay=weight_decay,
            noise=0.3,
        ):
            v = ((1 - lr * weight_decay) * step.before - step.after) / lr
            largest_v = max(largest_v, float(v.abs().max()))
            largest = max(largest, float(step.after.abs().max()))
            norms.append(float(step.after.norm(dim=-1).mean()))
        bound = max(3.0, largest_v / weight_decay) if weight_decay else None
        found.append(Decay(weight_decay, np.array(norms), largest, bound))
    return found
