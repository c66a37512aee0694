"""What each method of Fig. 3 reaches on the strong quadratic with its best learning rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lpsgd import CosineP
from lpsgd.geometry import lp_direction

STEPS = (100, 300, 1000, 3000)
EXPONENTS = (6.0, 8.0, 9.0)  # the paper's p_max, Tables 4 to 6
# No round numbers: from (0, 0), SignGD with a rate of 1 or 0.1 lands exactly on the minimum (1, 4).
RATES = torch.logspace(-4, 0.5, 500, dtype=torch.float64)
LAST = 10  # steps whose largest loss counts; one step alone could lie at the minimum by chance


@dataclass(frozen=True)
class Best:
    """The best learning rate of a method and the largest loss of the last steps with it."""

    lr: float
    loss: float


def search(
    curvature: tuple[float, float],
    minimum: tuple[float, float],
    start: tuple[float, float],
    steps: int,
    p_max: float,
) -> dict[str, Best]:
    """The best of ``RATES`` for each method, by the name it has in the figure."""
    annealed = CosineP(p_max, total_epochs=steps, steps_per_epoch=1)
    names = ("GD", "SignGD", "LPSGD, fixed p", "LPSGD, annealed p")
    # a method, a learning rate, a coordinate
    theta = torch.tensor(start, dtype=torch.float64).expand(len(names), len(RATES), 2).clone()
    bent, centre = (torch.tensor(pair, dtype=torch.float64) for pair in (curvature, minimum))
    worst = torch.zeros(len(names), len(RATES), dtype=torch.float64)
    for t in range(steps):
        gradient = bent * (theta - centre)
        theta -= RATES[:, None] * _directions(gradient, p_max, float(annealed(t)))
        if t >= steps - LAST:
            worst = torch.maximum(worst, 0.5 * (bent * (theta - centre) ** 2).sum(-1))
    losses, places = worst.nan_to_num(nan=torch.inf).min(dim=1)
    found = zip(names, places.tolist(), losses.tolist(), strict=True)
    return {name: Best(float(RATES[place]), loss) for name, place, loss in found}


def _directions(gradient: Tensor, p_max: float, p: float) -> Tensor:
    rules = (gradient[0], gradient[1].sign())
    fixed, annealed = lp_direction(gradient[2], p_max), lp_direction(gradient[3], p)
    return torch.stack([*rules, fixed, annealed])
