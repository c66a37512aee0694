"""Signum: only the sign of the averaged gradient is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import Group
from lpsgd._foreach import Tensors
from lpsgd.peers._peer import MOMENTUM, Peer, descend_


class Signum(Peer):
    r"""Sign descent on averaged momentum (Bernstein et al., 2018), with decoupled decay.

    .. math::
        m_t &= \beta m_{t-1} + (1-\beta)\, g_t, \qquad m_0 = 0 \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, \mathrm{sign}(m_t)

    It is :class:`~lpsgd.LPSGDM` at p = inf and eps = 0. With ``momentum=0``, which keeps no buffer,
    it is :class:`~lpsgd.peers.SignSGD`, whose other arguments it shares.

    Args:
        momentum: the coefficient beta of the average, in [0, 1).
        state_dtype: the dtype of the momentum; None means float32 for half-precision parameters,
            else the parameter's own.

    Example:
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = Signum([theta], lr=0.25, momentum=0.9)
        >>> for slope in (1.0, 1.0, -1.0):  # the average outvotes the last gradient
        ...     theta.grad = torch.tensor([slope])
        ...     optimizer.step()
        >>> theta.item()
        0.25
    """

    _checks: ClassVar = {**Peer._checks, "momentum": checks.fraction}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
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
        x = g
        if buffers:
            (x,) = buffers
            torch._foreach_lerp_(x, g, 1 - settings["momentum"])
        descend_(theta, torch._foreach_sign(x), settings)
