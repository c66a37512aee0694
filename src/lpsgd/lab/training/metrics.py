"""What is measured on a network, its gradients and an optimizer while it trains."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lpsgd.lab.training.parallel.strategies import unshard

if TYPE_CHECKING:
    from lpsgd.lab.training.objective import Objective


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: Objective,
    batches: Iterable[Any],
    autocast: Callable[[], AbstractContextManager[object]],
    between: Callable[[], None] = lambda: None,
    total: Callable[..., tuple[Tensor, ...]] = lambda *parts: parts,
) -> dict[str, float]:
    """Score ``model`` in evaluation mode; ``between`` is called after each batch.

    ``total`` adds up over the processes that have each a part of every batch.
    """
    was_training = model.training
    model.eval()
    sums: Tensor | None = None
    for batch in batches:
        with autocast():
            found = objective.scores(model, batch)
        sums = found if sums is None else sums + found
        between()
    model.train(was_training)
    if sums is None:
        raise ValueError("there is nothing to evaluate on: the loader gave no batches")
    *scores, examples = (part.item() for part in total(*sums))
    return {name: score / examples for name, score in zip(objective.names, scores, strict=True)}


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that there are, without the graph of second derivatives."""
    return [p.grad.detach() for p in parameters if p.grad is not None]


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the l2 norm of all gradients taken as one vector."""
    return unshard(torch.nn.utils.get_total_norm(gradients(parameters)))


def update_rms(before: Iterable[Tensor], after: Iterable[Tensor]) -> float:
    """Return sqrt(mean((after - before)^2)) over all coordinates: the size of one step."""
    total, count = 0.0, 0
    for old, new in zip(before, after, strict=True):
        total += unshard((new.detach() - old).double().square().sum()).item()
        count += old.numel()
    return float((total / max(1, count)) ** 0.5)


def state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of an optimizer's state; what several parameters share counts once."""
    seen: dict[int, int] = {}
    for tensor in _tensors(list(optimizer.state.values())):
        seen[id(tensor)] = tensor.numel() * tensor.element_size()
    return sum(seen.values())


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in nested mappings and lists: L-BFGS keeps its history in lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple | deque):
        for item in value:
            yield from _tensors(item)


class Stopwatch:
    """Adds up time spent in a block: wall clock on a CPU, events of the stream on a GPU.

    Events are read only at the end, so that measuring does not make the GPU wait.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> None:
        if self._on_gpu:
            self._events.append((_event(), _event()))
            self._events[-1][0].record()
        else:
            self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._on_gpu:
            self._events[-1][1].record()
        else:
            self._seconds += time.perf_counter() - self._start

    def take(self) -> float:
        """Return the seconds since the last call."""
        if self._on_gpu:
            torch.cuda.synchronize()
            self._seconds = sum(a.elapsed_time(b) for a, b in self._events) / 1000
            self._events.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
