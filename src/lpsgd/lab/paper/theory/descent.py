r"""Lemmas 1 and 2 along real trajectories, and what "one L for every p" costs.

Both lemmas are :math:`f(\theta+d) \le f(\theta) + \langle\nabla f, d\rangle + \tfrac L2\|d\|_p^2`
for the step d that was taken. The share of the last term that is used,
:math:`\frac{f(\theta+d) - f(\theta) - \langle\nabla f, d\rangle}{\tfrac L2\|d\|_p^2}`,
must not exceed 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lpsgd import CosineP
from lpsgd.lab.paper.theory.problems import (
    Problem,
    Step,
    power_law,
    quadratic,
    smoothness,
    walk,
    wells,
)

P_MAX = 6.0
EXPONENTS = (2.0, 3.0, 4.0, 6.0, 9.0, math.inf)
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LemmaCheck:
    """One lemma on one problem: how many steps broke it, and how close the closest came."""

    lemma: str
    problem: str
    constant: str
    steps: int
    violations: int
    largest_share: float


def lemma_checks(steps: int = 400, replicates: int = 8) -> list[LemmaCheck]:
    """Both lemmas on both problems with L_p of the active p, L of p_max, and (wrongly) L_2."""
    start = torch.linspace(-2, 2, 50, dtype=torch.float64)
    problems = (quadratic(power_law(50, 10.0), start), wells(power_law(50, 2.0), start))
    schedule = CosineP(P_MAX, total_epochs=20, steps_per_epoch=steps // 20)
    checks = []
    for problem in problems:
        for lemma, momentum in (("Lemma 1 (LPSGD)", None), ("Lemma 2 (LPSGDM)", 0.9)):
            taken = list(
                walk(
                    problem,
                    steps=steps,
                    lr=0.02,
                    p=schedule,
                    momentum=momentum,
                    noise=0.3,
                    replicates=replicates,
                )
            )
            for name, fixed in (("L of the active p", None), ("L of p_max", P_MAX), ("L of 2", 2)):
                shares = torch.stack([_share(problem, step, fixed) for step in taken])
                broken = int((shares > 1 + _ROUNDING).sum())
                worst = float(shares.max())
                checks.append(LemmaCheck(lemma, problem.name, name, shares.numel(), broken, worst))
    return checks


def _share(problem: Problem, step: Step, p_of_constant: float | None) -> Tensor:
    d = step.after - step.before
    used = problem.value(step.after) - problem.value(step.before) - (step.gradient * d).sum(-1)
    norm = torch.linalg.vector_norm(d, step.p, dim=-1)
    constant = problem.smoothness(step.p if p_of_constant is None else p_of_constant)
    share: Tensor = used / (0.5 * constant * norm**2)
    return share


def smoothness_table() -> list[tuple[str, int, list[float]]]:
    """L_p / L_2 for p in `EXPONENTS` and three spectra: between 1 and the dimension."""
    spectra = {
        "the strong quadratic of Fig. 3": torch.tensor([200.0, 0.05], dtype=torch.float64),
        "power law 1/i": power_law(1000),
        "isotropic": torch.ones(1000, dtype=torch.float64),
    }
    return [
        (
            name,
            len(spectrum),
            [smoothness(spectrum, p) / smoothness(spectrum, 2.0) for p in EXPONENTS],
        )
        for name, spectrum in spectra.items()
    ]


def imbalance(
    ratio: float, exponents: tuple[float, ...] = (2.0, 3.0, 6.0, math.inf)
) -> list[float]:
    """|d_i|/|d_j| = (λ_i|θ_i| / λ_j|θ_j|)^α for each p.

    >>> [round(x, 2) for x in imbalance(1000.0)]
    [1000.0, 31.62, 3.98, 1.0]
    """
    return [ratio ** (1 / (p - 1)) for p in exponents]
