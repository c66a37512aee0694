"""Cautious AdamW: no step where it and the gradient disagree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import Group
from lpsgd._foreach import Tensors
from lpsgd.peers._peer import MOMENTUM, Peer, descend_
from lpsgd.schedule import exponent_dtype


class CautiousAdamW(Peer):
    r"""AdamW without the coordinates whose step goes against the gradient (Liang et al., 2024).

    .. math::
        m_t &= \beta_1 m_{t-1} + (1-\beta_1)\, g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1-\beta_2)\, g_t^2, \qquad m_0 = v_0 = 0 \\
        u_t &= \frac{m_t / (1-\beta_1^t)}{\sqrt{v_t / (1-\beta_2^t)} + \varepsilon}, \qquad
        \phi_t = [u_t g_t > 0] \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t
        - \eta\, \frac{u_t \phi_t}{\max(\operatorname{mean} \phi_t, \mu)}

    The mean is taken over each tensor, so that a step is about as long as AdamW's.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element.
        betas: the coefficients (beta_1, beta_2) of the averages, in [0, 1).
        eps: the number epsilon that is added to the root.
        weight_decay: the decoupled decay lambda.
        least_share: the bound mu of the mean by which a step is scaled up, as in the authors' code.
        state_dtype: the dtype of the averages; None means float32 for half-precision parameters,
            else the parameter's own.
        maximize: maximize the objective instead of minimizing it.
        foreach: use the multi-tensor path; None chooses it unless ``differentiable``.
        capturable: keep the count on the parameters' device, for graph capture.
        differentiable: let autograd differentiate through the step.

    Example:
        >>> theta = torch.tensor([1.0, 1.0], requires_grad=True)
        >>> optimizer = CautiousAdamW([theta], lr=0.25, weight_decay=0.0)
        >>> for slope in (1.0, -0.5):  # the average still points the other way in the second step
        ...     theta.grad = torch.tensor([1.0, slope])
        ...     optimizer.step()
        >>> theta
        tensor([0.2500, 0.7500], requires_grad=True)
    """

    _checks: ClassVar = {
        **Peer._checks,
        "betas": checks.fraction_pair,
        "eps": checks.positive,
        "least_share": checks.positive,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        least_share: float = 1e-3,
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
                "eps": eps,
                "weight_decay": weight_decay,
                "least_share": least_share,
                "state_dtype": state_dtype,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        return (MOMENTUM, "second_moment")

    def _rule(
        self, theta: Tensors, g: Tensors, buffers: list[list[Tensor]], settings: Mapping[str, Any]
    ) -> None:
        m, v = buffers
        beta1, beta2 = settings["betas"]
        t = settings["t"]
        if isinstance(t, Tensor):  # a power of an integer tensor would be of single precision
            t = t.to(exponent_dtype(t.device))
        torch._foreach_lerp_(m, g, 1 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, g, g, value=1 - beta2)
        # new tensors, because autograd needs the root as it was
        size = torch._foreach_sqrt(torch._foreach_div(v, 1 - beta2**t))
        u = torch._foreach_div(m, torch._foreach_add(size, settings["eps"]))
        torch._foreach_div_(u, 1 - beta1**t)
        for step, gradient in zip(u, g, strict=True):
            agrees = (step * gradient > 0).to(step.dtype)
            step.mul_(agrees / agrees.mean().clamp(min=settings["least_share"]))
        descend_(theta, u, settings)
