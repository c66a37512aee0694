"""Stacey: accelerated l_p steepest descent, which couples a primal and a dual sequence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import Group, working_dtype
from lpsgd._foreach import Tensors, add_scaled_, lp_direction, real, signed_power
from lpsgd.geometry import Exponent
from lpsgd.peers._peer import MOMENTUM, Peer
from lpsgd.schedule import PFunction

Mode: TypeAlias = Literal["p2", "pp"]

DUAL = "z"


class Stacey(Peer):
    r"""Stacey (Luo et al., 2025): l_p steepest descent accelerated by interpolation, for p >= 2.

    .. math::
        c_t &= \beta_1 m_{t-1} + (1-\beta_1)\, g_t, \qquad m_0 = 0, \; z_0 = \theta_1 \\
        u_t &= c_t\, (|c_t| + \varepsilon)^{-\rho}, \qquad \rho = \frac{p-2}{p-1} \\
        z_t &= \begin{cases}
            z_{t-1} - a\, c_t & \text{mode (p,2)} \\
            \varphi^{-1}\bigl(\varphi(z_{t-1}) - a\, c_t\bigr),
            \quad \varphi(z) = |z|^{p-2} z & \text{mode (p,p)}
        \end{cases} \\
        \theta_{t+1} &= (1 - \tau - \eta\lambda)\,\theta_t + \tau z_t - \eta (1-\tau)\, u_t \\
        m_t &= \beta_2 m_{t-1} + (1-\beta_2)\, g_t

    With tau = 0 and beta_1 = beta_2 it is :class:`~lpsgd.LPSGDM`; at p = 2 the modes are the same.
    Both sequences, m and z, are in the state dict.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the primal learning rate eta, a number or a tensor of one element.
        betas: the coefficients (beta_1, beta_2) of the interpolation and of the average, in [0, 1).
        p: the norm exponent: a number from 2 to inf (below inf for mode ``"pp"``), a 0-d tensor, or
            a schedule ``step -> p`` such as :class:`~lpsgd.CosineP`, as in :class:`~lpsgd.LPSGDM`.
        tau: the weight of the dual sequence, in [0, 1].
        dual_lr: the step a of the dual sequence (alpha in the authors' text). Learning-rate
            schedulers do not change it.
        mode: ``"p2"`` takes the dual step in the Euclidean geometry, ``"pp"`` in that of l_p.
        weight_decay: the decoupled decay lambda.
        eps: the constant epsilon > 0 that keeps the scaling finite at zero.
        state_dtype: the dtype of the momentum m; None means float32 for half-precision parameters,
            else the parameter's own. z, which is a parameter itself, is never stored in less.
        maximize: maximize the objective instead of minimizing it.
        foreach: use the multi-tensor path; None chooses it unless ``differentiable``.
        capturable: keep count and p in tensors on the parameters' device, for graph capture. The
            value of p is then not validated during a step.
        differentiable: let autograd differentiate through the step.

    Example:
        >>> from lpsgd import CosineP
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = Stacey(model.parameters(), lr=1e-2, p=CosineP(6, total_steps=100))
        >>> model(torch.ones(4, 10)).square().mean().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[model.bias])
        ['momentum_buffer', 'step', 'z']
    """

    _checks: ClassVar = {
        **Peer._checks,
        "betas": checks.fraction_pair,
        "p": checks.exponent_or_schedule,
        "tau": checks.closed_fraction,
        "dual_lr": checks.non_negative,
        "mode": checks.one_of("p2", "pp"),
        "eps": checks.positive,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        p: float | Tensor | PFunction = 6.0,
        tau: float = 1e-3,
        dual_lr: float = 1e-3,
        mode: Mode = "p2",
        weight_decay: float = 0.0,
        eps: float = 1e-8,
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
                "p": p,
                "tau": tau,
                "dual_lr": dual_lr,
                "mode": mode,
                "weight_decay": weight_decay,
                "eps": eps,
                "state_dtype": state_dtype,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        p = group["p"]
        if callable(p) and not isinstance(p, Tensor):
            p = p(self._count())
        _check_finite(group["mode"], p)

    def _current_p(self, group: Group, step: Tensor) -> Exponent:
        p = super()._current_p(group, step)
        if not group["capturable"] and not torch.compiler.is_compiling():
            _check_finite(group["mode"], p)
        return p

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        return (MOMENTUM, DUAL)

    def _new_buffer(self, name: str, param: Tensor, group: Group) -> Tensor:
        if name == DUAL:
            theta = real(param)
            return theta.to(working_dtype(theta), copy=True)
        return super()._new_buffer(name, param, group)

    def _rule(
        self, theta: Tensors, g: Tensors, buffers: list[list[Tensor]], settings: Mapping[str, Any]
    ) -> None:
        m, z = buffers
        beta1, beta2 = settings["betas"]
        lr, p, tau = settings["lr"], settings["p"], settings["tau"]
        c = torch._foreach_lerp(m, g, 1 - beta1)  # c = beta_1 m + (1 - beta_1) g
        u = lp_direction(c, p, settings["eps"])
        if settings["mode"] == "pp":
            z[:] = _mirror_step(z, c, settings["dual_lr"], p)
        else:
            add_scaled_(z, c, -settings["dual_lr"])
        # theta <- (1 - tau - eta lambda) theta + tau z - eta (1 - tau) u
        torch._foreach_mul_(theta, 1 - tau - lr * settings["weight_decay"])
        add_scaled_(theta, z, tau)
        add_scaled_(theta, u, -lr * (1 - tau))
        torch._foreach_lerp_(m, g, 1 - beta2)  # m <- beta_2 m + (1 - beta_2) g


def _mirror_step(z: Tensors, c: Tensors, a: float, p: Exponent) -> Tensors:
    """phi^-1(phi(z) - a c); both terms are divided by phi of a scale s, for z^(p-1) has no bounds

    With w = phi^-1(a c) and s = max(|z|, |w|) it is s phi^-1(phi(z/s) - phi(w/s)).
    """
    w = signed_power(torch._foreach_mul(c, a), 1 / (p - 1))
    s = torch._foreach_maximum(torch._foreach_abs(z), torch._foreach_abs(w))
    s = torch._foreach_clamp_min(s, torch.finfo(z[0].dtype).tiny)
    image = signed_power(torch._foreach_div(z, s), p - 1)
    add_scaled_(image, signed_power(torch._foreach_div(w, s), p - 1), -1)
    return torch._foreach_mul(s, signed_power(image, 1 / (p - 1)))


def _check_finite(mode: Mode, p: Exponent) -> None:
    if mode == "pp" and math.isinf(p):
        raise ValueError(
            f"p={float(p)} with mode='pp': the map |z|^(p-2) z exists for finite p only; allowed "
            "is a p from 2 to below inf, or mode='p2'"
        )
