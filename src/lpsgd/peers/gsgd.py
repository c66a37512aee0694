"""GSGD: from sign descent to gradient descent by a growing power."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from lpsgd.optimizer import LPSGD
from lpsgd.schedule import LinearAlpha


class GSGD(LPSGD):
    r"""The gradual method of the paper's Remark 1, with decoupled decay.

    .. math::
        u_t = \mathrm{sign}(g_t)\,|g_t|^{a_t}, \quad a_t = \min\Bigl(\frac{t-1}{T}, 1\Bigr), \qquad
        \theta_{t+1} = (1 - \eta\lambda)\,\theta_t - \eta\, u_t, \qquad t = 1, 2, \dots

    With a = alpha = 1/(p-1) this is :class:`~lpsgd.LPSGD` under the schedule
    :class:`~lpsgd.LinearAlpha` as eps -> 0, and implemented as such: the first step is sign
    descent, and from step T + 1 on it is gradient descent.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element.
        total_steps: the number T of optimizer steps over which the power grows from 0 to 1.

    The other arguments are those of :class:`~lpsgd.LPSGD`.

    Example:
        >>> import torch
        >>> theta = torch.tensor([10.0], requires_grad=True)
        >>> optimizer = GSGD([theta], lr=1.0, total_steps=2)
        >>> for power in (0, 1 / 2, 1):
        ...     theta.grad = torch.tensor([4.0])
        ...     optimizer.step()
        ...     print(round(theta.item(), 3))  # down by 4^power
        9.0
        7.0
        3.0
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        *,
        total_steps: int,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            LinearAlpha(total_steps=total_steps),
            weight_decay,
            eps,
            maximize=maximize,
            foreach=foreach,
            fused=fused,
            capturable=capturable,
            differentiable=differentiable,
        )
