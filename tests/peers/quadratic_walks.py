"""Lets an optimizer walk over the oracles' problem, so that tests can compare where it gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tests.oracles.peers import Quadratic


def parameters(problem: Quadratic, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The problem's start, as leaves."""
    return [torch.tensor(s, dtype=dtype, requires_grad=True) for s in problem]


def walk(
    optimizer: torch.optim.Optimizer,
    params: Sequence[Tensor],
    problem: Quadratic,
    steps: int,
    first: int = 1,
) -> list[list[np.ndarray]]:
    """Take ``steps`` steps, the first with t = ``first``; for each parameter its points."""
    points: list[list[np.ndarray]] = [[] for _ in params]
    for t in range(first, first + steps):
        for i, param in enumerate(params):
            g = problem.gradient(i)(param.detach().double().numpy(), t)
            param.grad = torch.as_tensor(g, dtype=param.dtype)
        optimizer.step()
        for visited, param in zip(points, params, strict=True):
            visited.append(param.detach().double().numpy().copy())
    return points


def largest_difference(a: list[list[np.ndarray]], b: list[list[np.ndarray]]) -> float:
    """The largest absolute difference between two walks."""
    assert [len(x) for x in a] == [len(x) for x in b]
    return max(
        float(np.max(np.abs(x - y)))
        for mine, theirs in zip(a, b, strict=True)
        for x, y in zip(mine, theirs, strict=True)
    )
