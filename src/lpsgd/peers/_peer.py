"""The base of the peers: each states its rule once, over lists of real tensors of one dtype.

``foreach`` hands the rule all tensors of a device and precision at once; the loop is the same rule
on lists of one. What a rule does not see: half precision, complex numbers, empty tensors, maximize.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from lpsgd import _checks as checks
from lpsgd._base import COMMON_CHECKS, Group, LpOptimizer, working_dtype
from lpsgd._foreach import Tensors, add_scaled_, real, require_memory, scalar
from lpsgd.geometry import Exponent

# The tensors of one parameter: itself, its gradient, its buffers.
_Row: TypeAlias = tuple[Tensor, ...]

MOMENTUM = "momentum_buffer"


class Peer(LpOptimizer):
    """An optimizer that is given by ``_rule``. Its buffers are float32 for half precision."""

    _checks: ClassVar[Mapping[str, checks.Check]] = {
        **COMMON_CHECKS,
        "state_dtype": checks.floating_dtype,
    }

    @abstractmethod
    def _rule(
        self, theta: Tensors, g: Tensors, buffers: list[list[Tensor]], settings: Mapping[str, Any]
    ) -> None:
        """Move ``theta`` and ``buffers`` by one step, and leave ``g`` as it is.

        A tensor is changed in place, or another is put into its list. ``settings`` are the
        group's, with the lr and p of this step and its number ``t``, from 1.
        """

    def _update(
        self,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[list[Tensor]],
        step: Tensor,
        p: Exponent | None,
    ) -> None:
        differentiable = group["differentiable"]
        untouched = group["capturable"] or differentiable
        if not differentiable:
            require_memory(params, grads, [buffer for held in buffers for buffer in held])
        settings = {**group, "lr": scalar(group["lr"], params, untouched)}
        settings["p"] = None if p is None else scalar(p, params, untouched)
        settings["t"] = scalar(step, params, untouched) + 1
        rows = [
            (real(param), real(grad.resolve_conj()), *state)
            for param, grad, *state in zip(params, grads, *buffers, strict=True)
            if param.numel() > 0
        ]
        foreach = not differentiable if group["foreach"] is None else group["foreach"]
        for some in _alike(rows) if foreach else [[row] for row in rows]:
            self._update_alike(some, settings)

    def _update_alike(self, rows: list[_Row], settings: Mapping[str, Any]) -> None:
        """Run the rule on tensors of one device and working dtype."""
        dtype = working_dtype(rows[0][0])
        roles = zip(*rows, strict=True)
        theta, g, *buffers = ([tensor.to(dtype) for tensor in role] for role in roles)
        if settings["differentiable"]:
            # autograd must find what a step was made of, although the buffers go on to change
            buffers = [[tensor.clone() for tensor in buffer] for buffer in buffers]
        if settings["maximize"]:
            g = list(torch._foreach_neg(g))
        self._rule(theta, g, buffers, settings)
        for row, moved in zip(rows, zip(theta, *buffers, strict=True), strict=True):
            for held, new in zip((row[0], *row[2:]), moved, strict=True):
                if new is not held:
                    held.copy_(new)


def _alike(rows: Iterable[_Row]) -> Iterable[list[_Row]]:
    """The rows in lists of one device and one working dtype, as foreach wants them."""
    lists: dict[tuple[torch.device, torch.dtype], list[_Row]] = {}
    for row in rows:
        lists.setdefault((row[0].device, working_dtype(row[0])), []).append(row)
    return lists.values()


def descend_(theta: Tensors, u: Tensors, settings: Mapping[str, Any]) -> None:
    """theta <- (1 - eta lambda) theta - eta u, the step with decoupled decay"""
    lr, weight_decay = settings["lr"], settings["weight_decay"]
    if weight_decay != 0:
        torch._foreach_mul_(theta, 1 - lr * weight_decay)
    add_scaled_(theta, u, -lr)
