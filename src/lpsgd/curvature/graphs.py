"""Differentiable graphs of a batch's gradient, through which products are one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Loss = Callable[[Any, Any], Tensor]


class ProductGraph(Protocol):
    """What a batch keeps so that the next product need not run the model again."""

    def product(self, chosen: Sequence[int], vectors: Sequence[Tensor], keep: bool) -> list[Tensor]:
        """Multiply the block of the parameters ``chosen`` by ``vectors``."""

    def roots(self) -> list[Tensor]:
        """The tensors that hold the graph, for :func:`graph_bytes`."""


def _derivative(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor], keep: bool
) -> list[Tensor]:
    """Σ_i weights_i · d outputs_i / d inputs; zero where an output is independent of an input."""
    connected = [
        (output, weight)
        for output, weight in zip(outputs, weights, strict=True)
        if output.requires_grad
    ]
    if not connected:
        return [torch.zeros_like(tensor) for tensor in inputs]
    live, live_weights = zip(*connected, strict=True)
    return list(
        torch.autograd.grad(live, inputs, live_weights, retain_graph=keep, materialize_grads=True)
    )


def _gradient(
    value: Tensor, leaves: Sequence[Tensor], weight: Tensor | None = None
) -> list[Tensor]:
    """The gradient with its own graph, so that it can be differentiated again."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(
        torch.autograd.grad(value, leaves, weight, create_graph=True, materialize_grads=True)
    )


class HessianGraph:
    """H v = d(g·v)/dθ with g = dL/dθ: only the second backward pass is run for each product."""

    def __init__(self, output: Any, targets: Any, loss: Loss, leaves: Sequence[Tensor]) -> None:
        value = _scalar(loss(output, targets))
        self.leaves = leaves
        self.gradient = _gradient(value, leaves)

    def product(self, chosen: Sequence[int], vectors: Sequence[Tensor], keep: bool) -> list[Tensor]:
        rows = [self.gradient[index] for index in chosen]
        return _derivative(rows, [self.leaves[index] for index in chosen], vectors, keep)

    def roots(self) -> list[Tensor]:
        return self.gradient


class GaussNewtonGraph:
    """G v = Jᵀ (d²L/df²) J v, with f the model's output and J = df/dθ.

    J v is the derivative in u of the linear function Jᵀu (two backward passes instead of a
    forward-mode pass, which not every layer has).
    """

    def __init__(self, output: Any, targets: Any, loss: Loss, leaves: Sequence[Tensor]) -> None:
        if not isinstance(output, Tensor):
            raise ValueError(
                f"kind='ggn' needs a model that returns one tensor, not {type(output)!r}"
            )
        self.leaves, self.output = leaves, output
        self.free_output = output.detach().requires_grad_()
        (self.slope,) = _gradient(_scalar(loss(self.free_output, targets)), [self.free_output])
        self.direction = torch.zeros_like(output).requires_grad_()
        self.transposed = _gradient(output, leaves, self.direction)

    def product(self, chosen: Sequence[int], vectors: Sequence[Tensor], keep: bool) -> list[Tensor]:
        rows = [self.transposed[index] for index in chosen]
        (change,) = _derivative(rows, [self.direction], vectors, True)
        (bend,) = _derivative([self.slope], [self.free_output], [change], True)
        return _derivative([self.output], [self.leaves[index] for index in chosen], [bend], keep)

    def roots(self) -> list[Tensor]:
        return [*self.transposed, self.slope, self.output]


def _scalar(value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value)
        raise ValueError(f"loss must return one number (mean or sum over the batch), not {shape}")
    return value.reshape(())


def graph_bytes(roots: Sequence[Tensor], exclude: Sequence[Tensor] = ()) -> int:
    """Bytes of the distinct tensors that the graph behind ``roots`` keeps, without ``exclude``."""
    known = {tensor.untyped_storage().data_ptr() for tensor in exclude}
    total, seen = 0, set()
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
        for tensor in _saved_tensors(node):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                known.add(storage.data_ptr())
                total += storage.nbytes()
    return total


def _saved_tensors(node: Any) -> list[Tensor]:
    names = [name for name in dir(node) if name.startswith("_saved_")]
    values = [getattr(node, name) for name in names]
    values.extend(getattr(node, "saved_tensors", ()))  # of torch.autograd.Function
    flat = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
    return [item for item in flat if isinstance(item, Tensor)]
