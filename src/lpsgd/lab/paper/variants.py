"""Two forms of LPSGDM that only the paper's questions need, reached by their import paths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lpsgd import LPSGDM, CosineP
from lpsgd.geometry import dual_exponent, lp_norm, rho

WHOLE_FACTOR = f"{__name__}:whole_factor"
HELD = f"{__name__}:held"


class WholeFactorLPSGDM(LPSGDM):
    r"""LPSGDM with the factor of the paper's equation ``core`` left in: lr times
    :math:`\|m\|_q^{\rho}`, the norm taken over all parameters together.

    The decay (1 - lr*wd) keeps the plain learning rate.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; the factor is that of the momentum after this gradient."""
        with self._scaled(float(self.factor())):
            return super().step(closure)

    def factor(self) -> Tensor:
        """||m||_q^rho over all parameters, of the momentum that the next step will use."""
        group = self.param_groups[0]
        schedule = group["p_schedule"]
        p = schedule(self._count()) if schedule is not None else group["p"]
        parts = [m.flatten() for m in self._next_momenta()]
        factor: Tensor = lp_norm(torch.cat(parts), dual_exponent(p)) ** rho(p)
        return factor

    def _count(self) -> int:
        for state in self.state.values():
            return int(state["step"])
        return 0

    def _next_momenta(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                m = self.state.get(param, {}).get("momentum_buffer", torch.zeros_like(param))
                yield torch.lerp(param.grad, m, group["momentum"])

    @contextmanager
    def _scaled(self, factor: float) -> Iterator[None]:
        kept = [(group["lr"], group["weight_decay"]) for group in self.param_groups]
        for group in self.param_groups:
            if factor > 0:
                group["lr"] = group["lr"] * factor
                group["weight_decay"] = group["weight_decay"] / factor
        try:
            yield
        finally:
            for group, (lr, decay) in zip(self.param_groups, kept, strict=True):
                group["lr"], group["weight_decay"] = lr, decay


class HeldCosineP:
    """p_max during the warm-up, then the paper's cosine over the epochs that are left."""

    def __init__(self, p_max: float, *, held: int, total_epochs: int, steps_per_epoch: int) -> None:
        self.cosine = CosineP(
            p_max, total_epochs=max(1, total_epochs - held), steps_per_epoch=steps_per_epoch
        )
        self.held_steps = held * steps_per_epoch

    def __call__(self, step: int) -> float:
        """p at ``step``."""
        return self.cosine(max(0, int(step) - self.held_steps))


def whole_factor(
    model: nn.Module, *, p: float, total_epochs: int, steps_per_epoch: int, **settings: Any
) -> WholeFactorLPSGDM:
    """`WholeFactorLPSGDM` with the paper's cosine."""
    schedule = CosineP(p, total_epochs=total_epochs, steps_per_epoch=steps_per_epoch)
    return WholeFactorLPSGDM(model.parameters(), p=schedule, **settings)


def held(
    model: nn.Module,
    *,
    p: float,
    held_epochs: int,
    total_epochs: int,
    steps_per_epoch: int,
    **settings: Any,
) -> LPSGDM:
    """LPSGDM whose p stays at p_max for the first ``held_epochs``."""
    schedule = HeldCosineP(
        p, held=held_epochs, total_epochs=total_epochs, steps_per_epoch=steps_per_epoch
    )
    return LPSGDM(model.parameters(), p=schedule, **settings)
