"""Rules of the l_p family that are screened beside those in the package, by import path.

Each states its formula. They are as short as they can be: no options that the screening lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lpsgd import CosineP, LinearAlpha, LPMuon
from lpsgd.peers import SOAP
from lpsgd.peers.matrices import lpmuon


def annealed_muon(
    model: nn.Module,
    *,
    total_steps: int,
    lr: float = 2e-2,
    weight_decay: float = 0.0,
    alpha_start: float = 0.0,
    alpha_end: float = 1.0,
    cautious: bool = False,
    normalize_rows: bool = False,
) -> LPMuon:
    """LPMuon whose exponent alpha of the singular values runs linearly between two values."""
    return lpmuon(
        model,
        lr=lr,
        weight_decay=weight_decay,
        p=LinearAlpha(alpha_start, alpha_end, total_steps=total_steps),
        cautious=cautious,
        normalize_rows=normalize_rows,
    )


class _Rule(Optimizer):
    """A rule for each tensor by itself: its step u, at decoupled decay."""

    def __init__(self, params: Iterable[Any], **settings: Any) -> None:
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for theta in group["params"]:
                if theta.grad is None:
                    continue
                state = self.state[theta]
                state["step"] = state.get("step", 0) + 1
                u = self.direction(theta.grad, state, group)
                theta.mul_(1 - group["lr"] * group["weight_decay"]).add_(u, alpha=-group["lr"])

    def direction(self, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """The step u for the gradient g."""
        raise NotImplementedError

    @staticmethod
    def average(state: dict[str, Any], name: str, value: Tensor, beta: float) -> Tensor:
        """The running average of ``value`` under ``name``, without its bias towards zero."""
        held = state.setdefault(name, torch.zeros_like(value))
        held.lerp_(value, 1 - beta)
        return held / (1 - beta ** state["step"])


class RunningScale(_Rule):
    r"""The l_p step on coordinates over a running root mean square of it, of a tensor or its rows.

    m = average of g;  u = sign(m) |m|^alpha;  theta <- ... - 0.2 lr u / sqrt(average of mean(u^2))

    with the cosine of p from ``p`` to 2. One buffer of the parameter's size, as LPSGDM.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        total_steps: int,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        p: float = 6.0,
        rows: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, rows=rows)
        self.p = CosineP(p, total_steps=total_steps)

    def direction(self, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """A step of root mean square 0.2, as AdamW's and Muon's."""
        alpha = 1 / (self.p(state["step"] - 1) - 1)
        m = self.average(state, "momentum", g, 0.9)
        u = m.sign() * m.abs().pow(alpha)
        over = tuple(range(1, u.ndim)) if group["rows"] and u.ndim > 1 else tuple(range(u.ndim))
        size = self.average(state, "size", u.square().mean(over, keepdim=True), 0.99)
        return 0.2 * u / (size.sqrt() + 1e-12)


def lp_adam_step(mean: Tensor, square: Tensor, eps: float, alpha: float) -> Tensor:
    """m / (sqrt(v) + eps)^rho / s^alpha, s the root mean square of sqrt(v) over the tensor."""
    scale = (square.mean().sqrt() + 1e-12) ** alpha
    return mean / (square.sqrt() + eps) ** (1 - alpha) / scale


class LpAdam(_Rule):
    r"""AdamW with a power of its denominator: u = m / (sqrt(v) + eps)^rho / s^alpha.

    s = rms of sqrt(v) over the tensor keeps the length of the step; p = inf is AdamW.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        p: float = 6.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, p=p, betas=betas)

    def direction(self, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """Adam's averages, another power."""
        m = self.average(state, "momentum", g, group["betas"][0])
        v = self.average(state, "square", g.square(), group["betas"][1])
        return lp_adam_step(m, v, 1e-8, 1 / (group["p"] - 1))


class EigenLp(SOAP):
    r"""SOAP with a power of its denominator, as `LpAdam` has it; p = inf is SOAP."""

    def __init__(
        self, params: Iterable[Any], *, lr: float = 3e-3, weight_decay: float = 0.0, p: float = 6.0
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.alpha = 1 / (p - 1)

    def _step(self, mean: Tensor, square: Tensor, eps: float) -> Tensor:
        return lp_adam_step(mean, square, eps, self.alpha)
