r"""LPSGD and LPSGDM, the two algorithms of the paper: class -> functional -> single / multi.

The one update rule, with x = g (Algorithm 1) or x = m (Algorithm 2):

.. math::
    m_t &= \beta m_{t-1} + (1-\beta) g_t               && \text{(eq:momentum\_buffer)} \\
    u_t &= x_t / (|x_t| + \varepsilon)^{\rho(p)}        && \text{(eq:ut)} \\
    \theta_{t+1} &= (1 - \eta\lambda) \theta_t - \eta u_t && \text{(eq:practical\_update)}

The paths that a step can take are in ``_descent.py``: the rule as it is written, the same with
foreach operations and one temporary, and with one pass of C code (fused.py), without any memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from lpsgd import _checks as checks
from lpsgd import geometry
from lpsgd._base import COMMON_CHECKS, DEFAULT_P, Group, LpOptimizer
from lpsgd._descent import coded_descent, demand_fused, lp_descent
from lpsgd._dtensor import is_sharded
from lpsgd._eight_bits import new_scales
from lpsgd._foreach import (
    real,
)
from lpsgd.geometry import Exponent, Normalize
from lpsgd.schedule import CosineP, PFunction

__all__ = ["LPSGD", "LPSGDM", "lp_descent"]

_CHECKS = {
    **COMMON_CHECKS,
    "p": checks.exponent_or_schedule,
    "eps": checks.positive,
    "normalize": checks.one_of(*geometry.NORMALIZATIONS),
}


def _cosine(p: object, total_steps: int) -> CosineP:
    """What ``total_steps`` stands for: the cosine from p, which must then be a number."""
    if callable(p) or isinstance(p, Tensor):
        raise ValueError(
            f"total_steps={total_steps!r} makes a schedule that starts at the number p; p is "
            f"{p!r}, so leave total_steps out"
        )
    checks.check_exponent("p", p)
    return CosineP(p, total_steps=total_steps)  # type: ignore[arg-type]


class LPSGD(LpOptimizer):
    r"""Stochastic l_p-norm steepest descent (the paper's Algorithm 1, with decoupled decay).

    .. math::
        u_t = \frac{g_t}{(|g_t| + \varepsilon)^{\rho}}, \quad \rho = \frac{p-2}{p-1}, \qquad
        \theta_{t+1} = (1 - \eta\lambda)\,\theta_t - \eta\, u_t

    The arguments are those of :class:`LPSGDM` but for ``momentum`` and ``state_dtype``; it keeps no
    buffer. The advice on the learning rate is the same: start at 1e-2, then try 3e-3 and 3e-2.

    Example:
        >>> from lpsgd import LPSGD
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = LPSGD(model.parameters(), lr=0.01, total_steps=100)  # p from 6 to 2
        >>> model(torch.ones(4, 10)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.param_groups[0]["p"]
        6.0
    """

    _checks = _CHECKS

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        p: float | Tensor | PFunction = DEFAULT_P,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        *,
        total_steps: int | None = None,
        normalize: Normalize = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "p": p if total_steps is None else _cosine(p, total_steps),
                "weight_decay": weight_decay,
                "eps": eps,
                "normalize": normalize,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, during training too; it starts at the optimizer's current count."""
        super().add_param_group(param_group)
        if self.param_groups[-1]["fused"]:
            # of what has no memory yet, the first step decides
            known = [p for p in self.param_groups[-1]["params"] if not (is_lazy(p) or p.is_meta)]
            try:
                with torch.no_grad():
                    demand_fused([real(param) for param in known])
            except RuntimeError:
                self.param_groups.pop()
                raise

    def _update(
        self,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[list[Tensor]],
        step: Tensor,
        p: Exponent | None,
    ) -> None:
        assert p is not None
        settings = {
            "p": p,
            "lr": group["lr"],
            "momentum": group.get("momentum", 0.0),
            "weight_decay": group["weight_decay"],
            "eps": group["eps"],
            "normalize": group["normalize"],
            "maximize": group["maximize"],
            "foreach": group["foreach"],
            "fused": group["fused"],
            "capturable": group["capturable"],
            "differentiable": group["differentiable"],
            "count": step,
        }
        if len(buffers) == 2:
            coded_descent(params, grads, *buffers, **settings)
        else:
            lp_descent(params, grads, buffers[0] if buffers else None, **settings)


class LPSGDM(LPSGD):
    r"""l_p-norm steepest descent on averaged momentum, with decoupled decay (Algorithm 2).

    .. math::
        m_t &= \beta m_{t-1} + (1-\beta) g_t, \qquad m_0 = 0 \\
        u_t &= \frac{m_t}{(|m_t| + \varepsilon)^{\rho}}, \qquad \rho = \frac{p-2}{p-1} \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, u_t

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        lr: the learning rate eta, a number or a tensor of one element. Start at 1e-2, then try
            3e-3 and 3e-2; for a language model 1e-3 too. The default is the paper's most frequent
            value, for runs of 200 epochs, and too small for short ones on images.
        momentum: the coefficient beta of the average, in [0, 1); 0 keeps no buffer.
        p: the norm exponent: a number from 2 to inf, a 0-d tensor, or a schedule ``step -> p``
            such as :class:`~lpsgd.CosineP`. The paper's method is a schedule; a constant 6 ended
            better than it in docs/study.md. A schedule is kept in ``group["p_schedule"]``, and each
            step writes the value that it uses to ``group["p"]``. Without a schedule
            ``group["p"]`` may be set by hand.
        weight_decay: the decoupled decay lambda.
        total_steps: the number of optimizer steps in the whole run: short for
            ``p=CosineP(p, total_steps=total_steps)``, the cosine from p to 2. Without it, and
            without a p of your own, p stays at 6 for ever, and the first step warns of that.
        eps: the constant epsilon > 0 that keeps the scaling finite at zero. Below the smallest
            normal number of the arithmetic (1.2e-38 in float32) it counts as that number.
        state_dtype: the dtype of the momentum; None means float32 for half-precision parameters,
            else the parameter's own. ``torch.bfloat16`` halves its memory: it is then rounded
            stochastically, and so are bfloat16 parameters, which keeps steps and decay far below
            their spacing right on average. ``torch.int8`` takes a little more than 1 byte for each
            parameter: codes and a scale for each block of 256, rounded stochastically too, in
            tensors of 4096 elements or more. A step then decodes one tensor after the other.
        normalize: sets the length of each tensor's step. ``None``: as in the paper. ``"dual"``:
            restores the factor ||x||_q^rho that the paper drops, so that the step is exact
            steepest descent as eps -> 0. ``"rms"``: unit root mean square, so that one learning
            rate serves every p; without it, annealing p is also a hidden decay of the step.
        maximize: maximize the objective instead of minimizing it.
        foreach: use the multi-tensor path; None chooses it where ``fused`` does not run, unless
            ``differentiable``.
        fused: update everything in one pass without temporary memory: on a CPU by a kernel that
            is compiled when lpsgd is installed, on a GPU by Triton kernels, or by code that
            Inductor compiles where there is no triton (neither was measured on a GPU by us). None
            chooses the kernel on a CPU where it can run; on a GPU it takes foreach, because it
            never compiles: give True there. True raises where fused cannot run.
        capturable: keep count and p in tensors on the parameters' device, for graph capture. The
            value of p is then not validated during a step.
        differentiable: let autograd differentiate through the step.

    Range: every finite gradient gives the step of the formula, from denormal numbers (which have
    few digits) to the largest; the momentum needs the difference of gradient and momentum to be
    finite, so that both must stay below half of the largest number where signs change. With p or lr
    in a tensor, gradients above a quarter of the largest number may not move their parameter.

    Example:
        >>> from lpsgd import LPSGDM, CosineP
        >>> model = torch.nn.Linear(10, 1)
        >>> schedule = CosineP(6, total_epochs=200, steps_per_epoch=391)  # the paper's
        >>> optimizer = LPSGDM(model.parameters(), lr=1e-2, p=schedule, weight_decay=0.01)
        >>> model(torch.ones(4, 10)).square().mean().backward()
        >>> optimizer.step()
    """

    _checks: ClassVar = {
        **_CHECKS,
        "momentum": checks.fraction,
        "state_dtype": checks.floating_dtype_or_int8,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        p: float | Tensor | PFunction = DEFAULT_P,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        *,
        total_steps: int | None = None,
        state_dtype: torch.dtype | None = None,
        normalize: Normalize = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        LpOptimizer.__init__(
            self,
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "p": p if total_steps is None else _cosine(p, total_steps),
                "weight_decay": weight_decay,
                "eps": eps,
                "state_dtype": state_dtype,
                "normalize": normalize,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _buffer_names(self, group: Group) -> tuple[str, ...]:
        if group["momentum"] == 0:
            return ()
        coded = group.get("state_dtype") is torch.int8
        return ("momentum_buffer", "momentum_scale") if coded else ("momentum_buffer",)

    def _new_buffer(self, name: str, param: Tensor, group: Group) -> Tensor:
        """As everywhere, but in 8 bits a tensor of codes and one of the blocks' scales."""
        if group["state_dtype"] is not torch.int8:
            return super()._new_buffer(name, param, group)
        if is_sharded(param):
            raise TypeError(
                f"state_dtype=torch.int8 takes plain tensors, and a parameter is a "
                f"{type(param).__name__}; state_dtype=torch.bfloat16 takes it"
            )
        scales = new_scales(real(param.detach()).numel(), param.device)
        if name == "momentum_scale":
            return scales
        return super()._new_buffer(
            name, param, {"state_dtype": torch.int8 if len(scales) else None}
        )

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group.get("state_dtype") is torch.int8 and group.get("differentiable"):
            raise ValueError(
                "state_dtype=torch.int8 and differentiable=True exclude each other: autograd "
                "cannot see through codes"
            )
