"""LPMuon in numpy, float64, one array at a time, by a full singular value decomposition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def direction(x: Array, alpha: float) -> Array:
    """0.2 sqrt(max(r, c)) U (S / rms S)^alpha V^T, where S^alpha is S (S^2 + e^2)^((alpha-1)/2)."""
    matrix = x.reshape(x.shape[0], -1)
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    if s[0] == 0:
        return np.zeros_like(x)
    rms = math.sqrt(float(np.mean(s**2)))
    floor = float(np.sum(s**4)) ** 0.25 / 256
    powers = s * (s**2 + floor**2) ** ((alpha - 1) / 2) if alpha != 1 else s
    scale = 0.2 * math.sqrt(max(matrix.shape)) / rms**alpha
    return ((u * (scale * powers)) @ vt).reshape(x.shape)


def trajectory(
    params: Sequence[Array],
    grads: Sequence[Sequence[Array]],
    *,
    lr: Callable[[int], float],
    alpha: Callable[[int], float],
    momentum: float = 0.95,
    weight_decay: float = 0.0,
    nesterov: bool = True,
    cautious: bool = False,
    normalize_rows: bool = False,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    matrix: Callable[[Array], bool] = lambda w: w.ndim >= 2,
) -> list[Array]:
    """The parameters after one step for each list of gradients."""
    weights = [np.array(p, dtype=np.float64) for p in params]
    first = [np.zeros_like(w) for w in weights]
    second = [np.zeros_like(w) for w in weights]
    rows = [np.zeros(w.shape[0]) if w.ndim else None for w in weights]
    for t, row in enumerate(grads):
        for i, g in enumerate(row):
            if matrix(weights[i]):
                first[i] = momentum * first[i] + (1 - momentum) * g
                x = momentum * first[i] + (1 - momentum) * g if nesterov else first[i]
                u = direction(x, alpha(t))
                if normalize_rows:
                    axes = tuple(range(1, u.ndim))
                    rows[i] = betas[1] * rows[i] + (1 - betas[1]) * np.mean(u**2, axis=axes)
                    size = np.sqrt(rows[i] / (1 - betas[1] ** (t + 1))) + eps
                    scaled = u / size.reshape(-1, *[1] * (u.ndim - 1))
                    norm = np.linalg.norm(scaled)
                    u = scaled * (np.linalg.norm(u) / norm) if norm > 0 else scaled
                if cautious:
                    agree = u * g > 0
                    u = u * agree / max(float(np.mean(agree)), 1e-3)
            else:
                first[i] = betas[0] * first[i] + (1 - betas[0]) * g
                second[i] = betas[1] * second[i] + (1 - betas[1]) * g**2
                corrected = first[i] / (1 - betas[0] ** (t + 1))
                u = corrected / (np.sqrt(second[i] / (1 - betas[1] ** (t + 1))) + eps)
            weights[i] = (1 - lr(t) * weight_decay) * weights[i] - lr(t) * u
    return weights
