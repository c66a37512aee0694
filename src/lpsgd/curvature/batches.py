"""The data behind an operator: a fixed list of (inputs, targets) batches, whole or in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lpsgd.curvature.state import preserved_rng


@dataclass(frozen=True)
class Batch:
    """``inputs`` is a tensor, a tuple (positional) or a mapping (by name) for the model's call."""

    inputs: Any
    targets: Any
    samples: int

    def feed(self, model: Callable[..., Any]) -> Any:
        """Call ``model`` on the inputs."""
        if isinstance(self.inputs, Mapping):
            return model(**self.inputs)
        if isinstance(self.inputs, tuple | list):
            return model(*self.inputs)
        return model(self.inputs)

    def part(self, start: int, stop: int) -> Batch:
        """The samples from ``start`` to ``stop``."""

        def cut(tensor: Tensor) -> Tensor:
            if tensor.ndim == 0 or tensor.shape[0] % self.samples:
                return tensor  # not one for each sample
            rows = tensor.shape[0] // self.samples  # more than one for the positions of a text
            return tensor[start * rows : stop * rows]

        stop = min(stop, self.samples)
        return Batch(map_tensors(self.inputs, cut), map_tensors(self.targets, cut), stop - start)

    def chunks(self, size: int | None) -> list[Batch]:
        """Parts of at most ``size`` samples, in order; the batch itself for None."""
        if size is None or size >= self.samples:
            return [self]
        return [self.part(start, start + size) for start in range(0, self.samples, size)]

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """On ``device``, with floating-point tensors in ``dtype``."""

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(device, dtype if tensor.is_floating_point() else None).contiguous()
            # autograd cannot save tensors that were made under inference_mode
            return moved.clone() if moved.is_inference() else moved

        return Batch(map_tensors(self.inputs, move), map_tensors(self.targets, move), self.samples)


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``function`` to each tensor in nested mappings, lists and tuples."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map_tensors(item, function) for item in value)
    return value


def _sample_count(inputs: Any, targets: Any) -> int:
    lengths: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.ndim > 0:
            lengths.append(tensor.shape[0])
        return tensor

    map_tensors((inputs, targets), note)
    if not lengths:
        raise ValueError("data must hold tensors whose first dimension counts the samples")
    return lengths[0]


def _as_batch(item: Any) -> Batch:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"each batch of data must be a pair (inputs, targets), not {type(item)!r}")
    inputs, targets = item
    return Batch(inputs, targets, _sample_count(inputs, targets))


def collect(data: Any, samples: int | None = None) -> list[Batch]:
    """Read ``data`` once, so that every product sees the same batches in the same order.

    ``data`` is one pair of tensors or an iterable of pairs, such as a ``DataLoader``; random
    generators that reading advances are put back. ``samples`` stops after that many samples.
    """
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor):
        data = [data]
    if not isinstance(data, Iterable):
        raise ValueError(f"data must be a pair of tensors or an iterable of pairs, not {data!r}")
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    batches: list[Batch] = []
    left = float("inf") if samples is None else samples
    by_batch = getattr(data, "batch_sampler", None)
    samplers = (getattr(data, "sampler", None), by_batch, getattr(by_batch, "sampler", None))
    with preserved_rng(data, *samplers):
        for item in data:
            batch = _as_batch(item)
            batches.append(batch.part(0, int(left)) if batch.samples > left else batch)
            left -= batches[-1].samples
            if left <= 0:
                break
    return batches
