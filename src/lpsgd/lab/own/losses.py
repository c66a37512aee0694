"""The loss and the metric of a problem whose author named none, by the kind of its targets."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from lpsgd.lab.errors import UserError


def default_loss(output: Tensor, target: Any) -> Tensor:
    """Cross-entropy for classes, its binary form for truth values, else the squared error.

    >>> import torch
    >>> default_loss(torch.zeros(4, 10), torch.arange(4)).item()  # log 10
    2.3025851249694824
    >>> default_loss(torch.zeros(4, 1), torch.full((4,), 2.0)).item()
    4.0
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        kinds = f"a {type(output).__name__} and a {type(target).__name__}"
        raise UserError(
            f"loss: the model's output and the target are {kinds}; no loss is known for them: "
            "give loss=, a function (output, target), or step=, a function (model, batch)"
        )
    if target.dtype.is_floating_point or target.dtype.is_complex:
        return functional.mse_loss(_shaped(output, target), target)
    if not target.dtype.is_signed and target.dtype.itemsize == 1 and _is_bool(target):
        return functional.binary_cross_entropy_with_logits(
            _shaped(output, target), target.to(output.dtype)
        )
    return functional.cross_entropy(*_classes(output, target))


def top1(output: Tensor, target: Tensor) -> Tensor:
    """How often the class with the highest output is the target, in percent."""
    output, target = _classes(output, target)
    return 100 * (output.argmax(1) == target).float().mean()


def _is_bool(target: Tensor) -> bool:
    return str(target.dtype) == "torch.bool"


def _classes(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Classes along the second dimension, as torch has them; a text has them along the last."""
    if target.ndim > 1 and output.shape[:-1] == target.shape:
        return output.flatten(0, -2), target.flatten().long()
    return output, target.long()


def _shaped(output: Tensor, target: Tensor) -> Tensor:
    """The output in the target's shape: a last dimension of one is dropped, no other differs."""
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    if output.shape != target.shape:
        raise UserError(
            f"loss: the model's output has the shape {tuple(output.shape)} and the target "
            f"{tuple(target.shape)}; they must be the same for a loss by default"
        )
    return output
