"""PowerSGDM: a power of the gradient before momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import Group
from lpsgd._foreach import Tensors, add_scaled_, signed_power
from lpsgd.peers._peer import MOMENTUM, Peer


class PowerSGDM(Peer):
    r"""SGD with momentum on powered gradients (the Powerball function), with coupled decay.

    .. math::
        d_t &= \mathrm{sign}(g_t)\,|g_t|^{\gamma} + \lambda\,\theta_t \\
        b_t &= \mu\, b_{t-1} + d_t, \qquad b_0 = 0 \\
        \theta_{t+1} &= \theta_t - \eta\, b_t

    With gamma = 1 it is ``torch.optim.SGD`` with momentum and coupled decay. gamma plays the part
    of alpha = 1/(p-1) in :class:`~lpsgd.LPSGDM`, but the power comes before the average, and the
    buffer sums instead of averaging.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element.
        momentum: the coefficient mu of the sum, in [0, 1); 0 keeps no buffer.
        gamma: the power, in [0, 1]: 0 takes the sign of the gradient, 1 the gradient.
        weight_decay: the decay lambda, added to the powered gradient.
        state_dtype: the dtype of the momentum; None means float32 for half-precision parameters,
            else the parameter's own.
        maximize: maximize the objective instead of minimizing it.
        foreach: use the multi-tensor path; None chooses it unless ``differentiable``.
        capturable: keep the count on the parameters' device, for graph capture.
        differentiable: let autograd differentiate through the step.

    Example:
        >>> theta = torch.tensor([8.0, -2.0, 0.0], requires_grad=True)
        >>> optimizer = PowerSGDM([theta], lr=1.0, gamma=0.5)
        >>> theta.square().sum().backward()  # the gradient is 16, -4, 0
        >>> optimizer.step()
        >>> theta.tolist()
        [4.0, 0.0, 0.0]
    """

    _checks: ClassVar = {
        **Peer._checks,
        "momentum": checks.fraction,
        "gamma": checks.closed_fraction,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        gamma: float = 0.5,
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
                "gamma": gamma,
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
        d = signed_power(g, settings["gamma"])
        if settings["weight_decay"] != 0:
            torch._foreach_add_(d, theta, alpha=settings["weight_decay"])
        if buffers:
            (b,) = buffers
            torch._foreach_mul_(b, settings["momentum"])
            torch._foreach_add_(b, d)
            d = b
        add_scaled_(theta, d, -settings["lr"])
