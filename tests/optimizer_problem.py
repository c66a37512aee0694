"""Parameters and gradients that tests of optimizers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHAPES = ((5, 7), (3,), (), (2, 3, 2, 2))
STEPS = 60


def start(
    dtype: torch.dtype = torch.float64, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> list[Tensor]:
    """New leaf parameters, the same at each call."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


def gradients(
    steps: int = STEPS,
    dtype: torch.dtype = torch.float64,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> list[list[Tensor]]:
    """Gradients over seven orders of magnitude, with some exact zeros."""
    generator = torch.Generator().manual_seed(1)
    out = []
    for t in range(steps):
        row = []
        for shape in shapes:
            g = torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0 ** (t % 7 - 5)
            keep = torch.rand(shape, generator=generator, dtype=torch.float64) > 0.1
            row.append((g * keep).to(dtype))
        out.append(row)
    return out


def run(
    optimizer: torch.optim.Optimizer,
    params: Sequence[Tensor],
    grads: Sequence[Sequence[Tensor]],
    *,
    lr: Callable[[int], float] | None = None,
    step: Callable[[], Any] | None = None,
) -> None:
    """Take one step for each list of gradients."""
    for t, row in enumerate(grads):
        for param, g in zip(params, row, strict=True):
            param.grad = g.clone()
        if lr is not None:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr(t))
                else:
                    group["lr"] = lr(t)
        (step or optimizer.step)()


def arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """As float64 numpy arrays."""
    return [t.detach().double().numpy().copy() for t in tensors]


def largest_error(ours: Sequence[Tensor], theirs: Sequence[Any]) -> float:
    """The largest difference, relative to the larger of 1 and the value."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        x = a.detach().double().numpy()
        y = b.detach().double().numpy() if isinstance(b, Tensor) else np.asarray(b)
        if x.size:
            worst = max(worst, float(np.max(np.abs(x - y) / np.maximum(1, np.abs(y)))))
    return worst
