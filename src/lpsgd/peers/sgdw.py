"""SGDW: torch's SGD with decoupled decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch


class SGDW(torch.optim.SGD):
    r"""``torch.optim.SGD`` with the decay of AdamW.

    .. math::
        b_t &= \mu\, b_{t-1} + g_t, \qquad b_0 = 0 \\
        \theta_{t+1} &= (1 - \eta\lambda)\,\theta_t - \eta\, b_t

    A class and not a hook on torch's, because copies and pickles of an optimizer leave hooks
    behind. The decay is the setting ``decoupled_decay`` of each group, beside torch's own
    ``weight_decay``, which stays 0.

    Args:
        params: parameters, named parameters, or dicts that define parameter groups.
        weight_decay: the decoupled decay lambda.
        **settings: what ``torch.optim.SGD`` takes besides.
    """

    def __init__(self, params: Any, *, weight_decay: float = 0.0, **settings: Any) -> None:
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay={weight_decay}: must be at least 0")
        super().__init__(params, **settings)
        # a setting of the group like any other: saved, loaded, given to groups that are added
        self.defaults["decoupled_decay"] = weight_decay
        for group in self.param_groups:
            group.setdefault("decoupled_decay", weight_decay)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one optimization step.

        Args:
            closure: reevaluates the model, at the parameters before the decay.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                moved = [p for p in group["params"] if p.grad is not None]
                if moved and group["decoupled_decay"]:
                    torch._foreach_mul_(moved, 1 - group["lr"] * group["decoupled_decay"])
        sgd: Any = torch.optim.SGD.step
        if getattr(sgd, "hooked", False):  # torch has wrapped it: hooks would run a second time
            sgd = sgd.__wrapped__
        sgd(self)
        return loss
