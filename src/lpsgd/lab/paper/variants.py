"""Forms of LPSGDM that only the paper's open questions need, reached by their import paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lpsgd import LPSGDM, CosineP
from lpsgd.geometry import (
    Exponent,
    Normalize,
    dual_exponent,
    lp_direction,
    lp_norm,
    normalized_direction,
    rho,
    rms,
)

MATCHED = f"{__name__}:matched"
HELD = f"{__name__}:held"
LENGTHS = ("rms", "dual", "whole")


class MatchedLPSGDM(LPSGDM):
    r"""LPSGDM with another length of step, its first step as long as the paper's.

    ``length`` is ``"rms"`` or ``"dual"`` (``normalize``, per tensor), or ``"whole"``: the factor of
    the paper's equation ``core``, :math:`\|m\|_q^{\rho}` over all parameters together. At the first
    step the learning rate is scaled once for all so that the update has the root mean square
    that the paper's rule would give; from then on only the geometry and the length rule differ.
    The decay (1 - lr*wd) keeps the plain learning rate.
    """

    def __init__(self, params: Any, *, length: str, **settings: Any) -> None:
        if length not in LENGTHS:
            raise ValueError(f"length={length!r}: allowed: {', '.join(LENGTHS)}")
        lengths: dict[str, Normalize] = {"rms": "rms", "dual": "dual"}
        super().__init__(params, normalize=lengths.get(length), **settings)
        for group in self.param_groups:
            group["match"] = None  # of the first step; a checkpoint keeps it

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; its factors are those of the momentum after this gradient."""
        group, p = self.param_groups[0], self._coming_p()
        momenta = list(self._coming_momenta())
        factor = self._whole_factor(momenta, p) if group["normalize"] is None else 1.0
        if group["match"] is None:
            paper = _length([lp_direction(m, p, group["eps"]) for m in momenta])
            own = [normalized_direction(m, p, group["eps"], group["normalize"]) for m in momenta]
            for each in self.param_groups:
                each["match"] = paper / (_length(own) * factor)
        with self._scaled(factor * group["match"]):
            return super().step(closure)

    def _whole_factor(self, momenta: Sequence[Tensor], p: Exponent) -> float:
        everything = torch.cat([m.flatten() for m in momenta])
        return float(lp_norm(everything, dual_exponent(p)) ** rho(p))

    def _coming_p(self) -> Exponent:
        group = self.param_groups[0]
        schedule = group["p_schedule"]
        taken = next((int(state["step"]) for state in self.state.values()), 0)
        p: Exponent = group["p"] if schedule is None else schedule(taken)
        return p

    def _coming_momenta(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
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


def _length(directions: Sequence[Tensor]) -> float:
    return float(rms(torch.cat([u.flatten() for u in directions])))


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


def matched(
    model: nn.Module,
    *,
    length: str,
    p: float,
    total_epochs: int,
    steps_per_epoch: int,
    held_epochs: int = 0,
    **settings: Any,
) -> MatchedLPSGDM:
    """`MatchedLPSGDM` with the paper's cosine, after ``held_epochs`` at p_max."""
    schedule = HeldCosineP(
        p, held=held_epochs, total_epochs=total_epochs, steps_per_epoch=steps_per_epoch
    )
    return MatchedLPSGDM(model.parameters(), length=length, p=schedule, **settings)


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
