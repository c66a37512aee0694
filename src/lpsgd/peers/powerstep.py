"""PowerStep: a small power of summed momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import Group
from lpsgd._foreach import Tensors, signed_power
from lpsgd.peers._peer import MOMENTUM, Peer, descend_


class PowerStep(Peer):
    r"""A signed power of heavy-ball momentum (Lu et al., 2026, arXiv 2605.10335), decay decoupled.

    .. math::
        m_t &= \beta m_{t-1} + g_t, \qquad m_0 = 0 \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, \mathrm{sign}(m_t)\,|m_t|^{\gamma}

    It is :class:`~lpsgd.LPSGDM` with gamma = 1/(p-1) as eps goes to 0, at another learning rate:
    the momentum sums instead of averaging, which makes it 1/(1-beta) times as large.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element.
        momentum: the coefficient beta of the sum, in [0, 1); 0 keeps no buffer.
        power: the exponent gamma, in [0, 1]: 0 takes the sign of the momentum, 1 the momentum.
        weight_decay: the decoupled decay lambda.
        state_dtype: the dtype of the momentum; None means float32 for half-precision parameters,
            else the parameter's own.
        maximize: maximize the objective instead of minimizing it.
        foreach: use the multi-tensor path; None chooses it unless ``differentiable``.
        capturable: keep the count on the parameters' device, for graph capture.
        differentiable: let autograd differentiate through the step.

    Example:
        >>> theta = torch.tensor([8.0, -2.0, 0.0], requires_grad=True)
        >>> optimizer = PowerStep([theta], lr=1.0, power=0.5)
        >>> theta.square().sum().backward()  # the gradient is 16, -4, 0
        >>> optimizer.step()
        >>> theta.tolist()
        [4.0, 0.0, 0.0]
    """

    _checks: ClassVar = {
        **Peer._checks,
        "momentum": checks.fraction,
        "power": checks.closed_fraction,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        power: float = 0.1,
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
                "momentum": momentum,
                "power": power,
                "weight_decay": weight_decay,
                "state_dtype": state_dtype,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        return (MOMENTUM,) if group["momentum"] != 0 else ()

    def _rule(
        self, theta: Tensors, g: Tensors, buffers: list[list[Tensor]], settings: Mapping[str, Any]
    ) -> None:
        m = g
        if buffers:
            (m,) = buffers
            torch._foreach_mul_(m, settings["momentum"])
            torch._foreach_add_(m, g)
        descend_(theta, signed_power(m, settings["power"]), settings)
