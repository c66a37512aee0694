"""Lion-K: the gradient of a norm, at an interpolated momentum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd import geometry
from lpsgd._foreach import Tensors, largest_entries, one_for_zero, reusing_div, signed_power
from lpsgd.geometry import Exponent
from lpsgd.peers._peer import Peer
from lpsgd.peers.lion import Lion
from lpsgd.schedule import PFunction


class LionK(Lion):
    r"""Lion-K (Chen et al., 2024) for the norm :math:`K(x) = \|x\|_q`, q = p/(p-1), of each tensor.

    The sign of :class:`~lpsgd.peers.Lion` is replaced by the gradient of K, with alpha = 1/(p-1):

    .. math::
        c_t &= \beta_1 m_{t-1} + (1-\beta_1)\, g_t, \qquad m_0 = 0 \\
        u_t &= \nabla K(c_t) = \frac{\mathrm{sign}(c_t)\,|c_t|^{\alpha}}{\|c_t\|_q^{\alpha}} \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, u_t \\
        m_t &= \beta_2 m_{t-1} + (1-\beta_2)\, g_t

    Each tensor's u has the l_p norm 1, so its entries shrink with the tensor's size d like
    :math:`d^{-1/p}`: p = inf, where K is the l_1 norm, is Lion; p = 2 is momentum of unit length,
    whose learning rate has to be larger.

    Args:
        p: the norm exponent: a number from 2 to inf, a 0-d tensor, or a schedule ``step -> p`` such
            as :class:`~lpsgd.CosineP`, as in :class:`~lpsgd.LPSGDM`.

    The other arguments are those of :class:`~lpsgd.peers.Lion`.

    Example:
        >>> theta = torch.tensor([9.0, -4.0, 0.0], requires_grad=True)
        >>> optimizer = LionK([theta], lr=1.0, p=3.0)
        >>> theta.pow(2).sum().backward()
        >>> optimizer.step()
        >>> step = torch.tensor([9.0, -4.0, 0.0]) - theta.detach()
        >>> step / step[0]  # proportional to sign(g) |g|^(1/2)
        tensor([ 1.0000, -0.6667,  0.0000])
        >>> step.norm(3)
        tensor(1.0000)
    """

    _checks: ClassVar = {**Lion._checks, "p": checks.exponent_or_schedule}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        p: float | Tensor | PFunction = 6.0,
        weight_decay: float = 0.0,
        *,
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        Peer.__init__(
            self,
            params,
            {
                "lr": lr,
                "betas": betas,
                "p": p,
                "weight_decay": weight_decay,
                "state_dtype": state_dtype,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _direction(self, c: Tensors, p: Exponent | None) -> Tensors:
        assert p is not None
        if not isinstance(p, Tensor) and math.isinf(p):
            return super()._direction(c, p)
        # u does not depend on c's scale; entries of at most 1 keep every power in range
        y = reusing_div(c, one_for_zero(largest_entries(c)))
        alpha, q = geometry.alpha(p), geometry.dual_exponent(p)
        u = signed_power(y, alpha)
        # ||y||_q^q = <u, y>, at least 1, except for a tensor of zeros, whose u is 0
        powers = [
            torch.dot(v.flatten(), x.flatten()).clamp(min=1) for v, x in zip(u, y, strict=True)
        ]
        return reusing_div(u, [power ** (alpha / q) for power in powers])
