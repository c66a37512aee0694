"""Lion: the sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import Group
from lpsgd._foreach import Tensors
from lpsgd.geometry import Exponent
from lpsgd.peers._peer import MOMENTUM, Peer, descend_


class Lion(Peer):
    r"""Lion (Chen et al., 2023), with decoupled decay.

    .. math::
        u_t &= \mathrm{sign}\bigl(\beta_1 m_{t-1} + (1-\beta_1)\, g_t\bigr), \qquad m_0 = 0 \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, u_t \\
        m_t &= \beta_2 m_{t-1} + (1-\beta_2)\, g_t

    With beta_1 = beta_2 it is :class:`~lpsgd.peers.Signum`.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element.
        betas: the coefficients (beta_1, beta_2) of the interpolation and of the average, in [0, 1).
        weight_decay: the decoupled decay lambda.
        state_dtype: the dtype of the momentum; None means float32 for half-precision parameters,
            else the parameter's own.
        maximize: maximize the objective instead of minimizing it.
        foreach: use the multi-tensor path; None chooses it unless ``differentiable``.
        capturable: keep the count on the parameters' device, for graph capture.
        differentiable: let autograd differentiate through the step.

    Example:
        >>> theta = torch.tensor([1.0, -1.0], requires_grad=True)
        >>> optimizer = Lion([theta], lr=0.5, weight_decay=0.1)
        >>> (theta**2).sum().backward()
        >>> optimizer.step()
        >>> theta
        tensor([ 0.4500, -0.4500], requires_grad=True)
    """

    _checks: ClassVar = {**Peer._checks, "betas": checks.fraction_pair}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "weight_decay": weight_decay,
                "state_dtype": state_dtype,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        return (MOMENTUM,)

    def _direction(self, c: Tensors, p: Exponent | None) -> Tensors:
        """The direction u of the step; ``c`` may be used up."""
        torch._foreach_sign_(c)
        return c

    def _rule(
        self, theta: Tensors, g: Tensors, buffers: list[list[Tensor]], settings: Mapping[str, Any]
    ) -> None:
        (m,) = buffers
        beta1, beta2 = settings["betas"]
        c = torch._foreach_lerp(m, g, 1 - beta1)  # c = beta_1 m + (1 - beta_1) g
        descend_(theta, self._direction(c, settings["p"]), settings)
        torch._foreach_lerp_(m, g, 1 - beta2)  # m <- beta_2 m + (1 - beta_2) g
