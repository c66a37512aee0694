"""The paper's Algorithms 1 and 2 in numpy, float64, one array at a time, as plain as can be.

Written from the paper and not from the package: the exponent is (p-2)/(p-1) with its own limit,
norms are summed directly, and the cosine is evaluated epoch by epoch as Algorithm 1 states it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def paper_p(p_max: float, epoch: int, epochs: int, p_min: float = 2.0) -> float:
    """p_s of equation eq:p_schedule for epoch s = 1, 2, ..., S."""
    if epochs == 1:
        return p_max
    return p_min + (p_max - p_min) * (1 + math.cos(math.pi * (epoch - 1) / (epochs - 1))) / 2


def rho(p: float) -> float:
    return 1.0 if math.isinf(p) else (p - 2) / (p - 1)


def direction(x: Array, p: float, eps: float, normalize: str | None = None) -> Array:
    u = x / np.power(np.abs(x) + eps, rho(p))
    if normalize == "dual":
        q = 1.0 if math.isinf(p) else p / (p - 1)
        u = u * np.power(np.sum(np.abs(x) ** q), rho(p) / q)
    elif normalize == "rms":
        size = math.sqrt(float(np.mean(u**2)))
        u = u / max(size, eps / (2 * eps) ** rho(p))
    return u


def trajectory(
    start: Sequence[Array],
    gradients: Sequence[Sequence[Array]],
    *,
    p: Callable[[int], float],
    lr: Callable[[int], float],
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
    normalize: str | None = None,
    maximize: bool = False,
) -> list[Array]:
    """The parameters after a step for each list of gradients; p and lr are functions of t >= 0."""
    theta = [np.array(a, dtype=np.float64) for a in start]
    m = [np.zeros_like(a) for a in theta]
    for t, grads in enumerate(gradients):
        for i, g in enumerate(grads):
            g = -g if maximize else g
            m[i] = momentum * m[i] + (1 - momentum) * g
            u = direction(m[i], p(t), eps, normalize)
            theta[i] = (1 - lr(t) * weight_decay) * theta[i] - lr(t) * u
    return theta
