"""The two quadratics of the paper's Fig. 3 and the descents that run on them, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpsgd import LPSGD, ConstantP, CosineP
from lpsgd.peers import SignSGD

Array: TypeAlias = NDArray[np.float64]
Point: TypeAlias = tuple[float, float]

FAR = 1e9  # a descent that has gone this far has diverged and is stopped


@dataclass(frozen=True)
class Quadratic:
    """f(θ) = λ₁/2 (θ₁ - c₁)² + λ₂/2 (θ₂ - c₂)²."""

    name: str
    title: str
    curvature: Point
    minimum: Point = (1.0, 4.0)

    def loss(self, points: Array) -> Array:
        """f of points (..., 2)."""
        offset = points - np.array(self.minimum)
        value: Array = 0.5 * (np.array(self.curvature) * offset**2).sum(axis=-1)
        return value


STRONG = Quadratic("strong", "strong anisotropy", (200.0, 0.05))
WEAK = Quadratic("weak", "weak anisotropy", (1.2, 0.8))


@dataclass(frozen=True)
class Settings:
    """What the paper does not give of Fig. 3: chosen here, printed with the figure.

    GD's learning rate must stay below 2/λ₁ = 0.01 on the strong quadratic.
    """

    start: Point = (0.0, 0.0)
    steps: int = 100
    p_max: float = 6.0
    lr_gd: float = 0.009
    lr_sign: float = 0.1
    lr_lpsgd: float = 0.009


SETTINGS = {"strong": Settings(), "weak": Settings(lr_gd=0.5, lr_lpsgd=0.5)}

METHODS = ("GD", "SignGD", "LPSGD, fixed p", "LPSGD, annealed p")


def trajectory(method: str, quadratic: Quadratic, settings: Settings) -> Array:
    """The points (steps + 1, 2) that a method visits; fewer if it diverges."""
    theta = torch.tensor(settings.start, dtype=torch.float64)
    optimizer = _optimizer(method, theta, settings)
    curvature = torch.tensor(quadratic.curvature, dtype=torch.float64)
    minimum = torch.tensor(quadratic.minimum, dtype=torch.float64)
    points = [theta.numpy().copy()]
    for _ in range(settings.steps):
        theta.grad = curvature * (theta - minimum)
        optimizer.step()
        points.append(theta.numpy().copy())
        if not np.abs(points[-1]).max() < FAR:
            break
    return np.stack(points)


def _optimizer(method: str, theta: Tensor, settings: Settings) -> torch.optim.Optimizer:
    if method == "GD":
        return torch.optim.SGD([theta], lr=settings.lr_gd)
    if method == "SignGD":
        return SignSGD([theta], lr=settings.lr_sign)
    annealed = CosineP(settings.p_max, total_epochs=settings.steps, steps_per_epoch=1)
    p = {"LPSGD, fixed p": ConstantP(settings.p_max), "LPSGD, annealed p": annealed}[method]
    return LPSGD([theta], lr=settings.lr_lpsgd, p=p)
