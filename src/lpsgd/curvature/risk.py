"""The empirical risk, a loss over fixed data at one point: its gradient and Hessian products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from lpsgd.curvature.batches import Batch
from lpsgd.curvature.graphs import GaussNewtonGraph, HessianGraph, Loss, ProductGraph, graph_bytes
from lpsgd.curvature.state import BatchNormMode, measuring

Kind = Literal["hessian", "ggn"]
_GRAPHS: dict[Kind, type[HessianGraph] | type[GaussNewtonGraph]] = {
    "hessian": HessianGraph,
    "ggn": GaussNewtonGraph,
}


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


class Risk:
    """The loss over all batches at a point, with the graphs that are kept between products."""

    def __init__(
        self,
        point: Point,
        model: nn.Module,
        loss: Loss,
        batches: list[Batch],
        batchnorm: BatchNormMode,
        chunk: int | None,
        kind: Kind,
        reduction: str,
        group: dist.ProcessGroup | None,
        cache_gb: float,
    ) -> None:
        self.point, self.model, self.loss = point, model, loss
        self.batchnorm, self.kind, self.group = batchnorm, kind, group
        self.chunks = [part for batch in batches for part in batch.chunks(chunk)]
        self.samples = self._total(sum(batch.samples for batch in batches))
        if self.samples == 0:
            raise ValueError("data must hold at least one sample")
        share = 1 / self.samples if reduction == "mean" else None
        self.weights = [part.samples * share if share else 1.0 for part in self.chunks]
        self.budget, self.kept_bytes = cache_gb * 2**30, 0
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

    def _total(self, count: int) -> int:
        return int(self._reduced(torch.tensor([count], device=self.point.device)).item())
