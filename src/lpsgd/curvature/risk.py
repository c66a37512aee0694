"""The empirical risk, a loss over fixed data at one point: its gradient and Hessian products.

A product is one backward pass through the differentiable graph of each batch's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from lpsgd.curvature.batches import Batch
from lpsgd.curvature.state import BatchNormMode, measuring

Kind = Literal["hessian", "ggn"]
Loss = Callable[[Any, Any], Tensor]


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
        self.leaves = leaves
        self.gradient = _gradient(_scalar(loss(output, targets)), leaves)

    def product(self, chosen: Sequence[int], vectors: Sequence[Tensor], keep: bool) -> list[Tensor]:
        """Multiply the block of the parameters ``chosen`` by ``vectors``."""
        rows = [self.gradient[index] for index in chosen]
        return _derivative(rows, [self.leaves[index] for index in chosen], vectors, keep)

    def roots(self) -> list[Tensor]:
        """The tensors that hold the graph, for :func:`graph_bytes`."""
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


ProductGraph = HessianGraph | GaussNewtonGraph
"""What a batch keeps so that the next product need not run the model again."""
_GRAPHS: dict[Kind, type[ProductGraph]] = {"hessian": HessianGraph, "ggn": GaussNewtonGraph}


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


class Point:
    """Copies of a model's weights and buffers: where the Hessian is taken."""

    def __init__(self, model: nn.Module, names: list[str], dtype: torch.dtype | None) -> None:
        parameters = dict(model.named_parameters())
        first = parameters[names[0]]
        if dtype is None:
            dtype = torch.float32 if first.dtype in (torch.float16, torch.bfloat16) else first.dtype
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, not {dtype}")
        self.names, self.dtype, self.device = names, dtype, first.device

        def copied(tensor: Tensor) -> Tensor:
            # Not in channels_last, whose narrow convolutions crash some CPU builds of torch.
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            return tensor.detach().to(kind, copy=True, memory_format=torch.contiguous_format)

        with torch.inference_mode(False):
            self.weights = {name: copied(tensor) for name, tensor in parameters.items()}
            self.buffers = {name: copied(tensor) for name, tensor in model.named_buffers()}
            self.leaves = [self.weights[name].requires_grad_() for name in names]

    def call(self, model: nn.Module, batch: Batch) -> Any:
        # A forward pass may write into buffers (running statistics): it gets its own copies.
        scratch = {name: buffer.clone() for name, buffer in self.buffers.items()}
        state = {**self.weights, **scratch}

        def run(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, state, args, kwargs)

        return batch.feed(run)


@dataclass(eq=False)
class Risk:
    """The loss over all batches at a point, with the graphs that are kept between products."""

    point: Point
    model: nn.Module
    loss: Loss
    batches: list[Batch]
    batchnorm: BatchNormMode
    chunk: int | None
    kind: Kind
    reduction: str
    group: dist.ProcessGroup | None
    cache_gb: float

    def __post_init__(self) -> None:
        self.chunks = [part for batch in self.batches for part in batch.chunks(self.chunk)]
        count = sum(batch.samples for batch in self.batches)
        self.samples = int(self._reduced(torch.tensor([count], device=self.point.device)).item())
        if self.samples == 0:
            raise ValueError("data must hold at least one sample")
        share = 1 / self.samples if self.reduction == "mean" else None
        self.weights = [part.samples * share if share else 1.0 for part in self.chunks]
        self.budget, self.kept_bytes = self.cache_gb * 2**30, 0
        self.kept: list[ProductGraph] = []
        self._gradient: list[Tensor] | None = None

    def product(self, chosen: Sequence[int], vectors: Sequence[Tensor]) -> Tensor:
        total = [torch.zeros_like(vector) for vector in vectors]
        for index, weight in enumerate(self.weights):
            graph = self._kept_graph(index)
            if graph is not None:
                parts = graph.product(chosen, vectors, keep=True)
            else:  # made for this product alone, so only of the chosen parameters
                graph = self._build(index, [self.point.leaves[row] for row in chosen])
                parts = graph.product(range(len(chosen)), vectors, keep=False)
            for sum_, part in zip(total, parts, strict=True):
                sum_.add_(part, alpha=weight)
        return self._reduced(torch.cat([part.flatten() for part in total]))

    def _kept_graph(self, index: int) -> ProductGraph | None:
        """The graph that is kept for a chunk, made now if it is next in line and fits."""
        if index < len(self.kept):
            return self.kept[index]
        if index > len(self.kept) or self.kept_bytes >= self.budget:
            return None
        graph = self._build(index, self.point.leaves)
        size = graph_bytes(graph.roots(), list(self.point.weights.values()))
        if self.kept_bytes + size > self.budget:
            self.budget = float(self.kept_bytes)  # full: do not try again
            return None
        self.kept.append(graph)
        self.kept_bytes += size
        return graph

    def _build(self, index: int, leaves: Sequence[Tensor]) -> ProductGraph:
        with measuring(self.model, self.batchnorm, self.point.device):
            batch = self.chunks[index].to(self.point.device, self.point.dtype)
            output = self.point.call(self.model, batch)
            return _GRAPHS[self.kind](output, batch.targets, self.loss, leaves)

    def gradient(self) -> list[Tensor]:
        """The gradient of the whole loss, by one plain backward pass over each chunk."""
        if self._gradient is None:
            total = [torch.zeros_like(leaf) for leaf in self.point.leaves]
            for part, weight in zip(self.chunks, self.weights, strict=True):
                with measuring(self.model, self.batchnorm, self.point.device):
                    batch = part.to(self.point.device, self.point.dtype)
                    value = self.loss(self.point.call(self.model, batch), batch.targets)
                    if value.requires_grad:
                        gradients = torch.autograd.grad(
                            value, self.point.leaves, materialize_grads=True
                        )
                        for sum_, gradient in zip(total, gradients, strict=True):
                            sum_.add_(gradient, alpha=weight)
            self._gradient = [self._reduced(tensor) for tensor in total]
        return self._gradient

    def _reduced(self, tensor: Tensor) -> Tensor:
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor
