"""SignSGD: only the sign of the gradient is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lpsgd._foreach import Tensors
from lpsgd.peers._peer import Peer, descend_


class SignSGD(Peer):
    r"""Sign descent (Bernstein et al., 2018), with decoupled decay.

    .. math::
        \theta_{t+1} = (1 - \eta\lambda)\,\theta_t - \eta\, \mathrm{sign}(g_t)

    It is l_p descent (:class:`~lpsgd.LPSGD`) at p = inf and eps = 0. The sign of 0 is 0.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element.
        weight_decay: the decoupled decay lambda.
        maximize: maximize the objective instead of minimizing it.
        foreach: use the multi-tensor path; None chooses it unless ``differentiable``.
        capturable: keep the count on the parameters' device, for graph capture.
        differentiable: let autograd differentiate through the step.

    Example:
        >>> theta = torch.tensor([1.0, -1.0, 5.0], requires_grad=True)
        >>> optimizer = SignSGD([theta], lr=0.5)
        >>> (theta[0] ** 2 + 100 * theta[1] ** 2).backward()
        >>> optimizer.step()
        >>> theta.tolist()
        [0.5, -0.5, 5.0]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _rule(
        self, theta: Tensors, g: Tensors, buffers: list[list[Tensor]], settings: Mapping[str, Any]
    ) -> None:
        descend_(theta, torch._foreach_sign(g), settings)
