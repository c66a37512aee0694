"""Bytes for each parameter that training holds: weights, gradients, state and temporaries.

    python benchmarks/memory.py

prints the table of docs/scale.md: every optimizer of the registry in its own settings, and the
forms of LPSGDM that take less. Counted by torch's profiler on a CPU, over forward (which is left
out: activations are the model's), backward and step of eight layers of 512 x 512 in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from step import peak_temporary
from torch import nn
from torch.optim import Optimizer

from lpsgd import LPSGDM
from lpsgd.backward import step_in_backward
from lpsgd.peers import registry
from lpsgd.peers.factory import build

LAYERS, WIDTH, STEPS = 8, 512, 10


def a_model() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def registered(name: str) -> Callable[[nn.Module], Optimizer]:
    lengths = {"total_steps": STEPS, "steps_per_epoch": 1, "total_epochs": STEPS}
    return lambda model: build(name, model, {}, **lengths)


def in_backward(model: nn.Module) -> Optimizer:
    optimizer = LPSGDM(model.parameters(), lr=1e-3, total_steps=STEPS)
    step_in_backward(optimizer)
    return optimizer


def with_state(dtype: torch.dtype) -> Callable[[nn.Module], Optimizer]:
    return lambda model: LPSGDM(model.parameters(), lr=1e-3, total_steps=STEPS, state_dtype=dtype)


ROWS: dict[str, Callable[[nn.Module], Optimizer]] = {
    **{name: registered(name) for name in registry.names()},
    "lpsgdm, state_dtype=torch.bfloat16": with_state(torch.bfloat16),
    "lpsgdm, state_dtype=torch.int8": with_state(torch.int8),
    "lpsgdm, step_in_backward": in_backward,
}


def row(make: Callable[[nn.Module], Optimizer]) -> tuple[float, float, float, float]:
    """Bytes for each parameter of weights, gradients, state, and temporaries of a step."""
    torch.manual_seed(0)
    model = a_model()
    count = sum(param.numel() for param in model.parameters())
    weights = sum(param.nbytes for param in model.parameters())
    optimizer = make(model)
    x = torch.ones(1, WIDTH)  # one row, so that activations are next to nothing
    alive = [0]

    def look(own: torch.Tensor) -> None:
        others = [p for p in model.parameters() if p.grad is not None and p is not own]
        alive.append(own.nbytes + sum(p.nbytes for p in others))

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(look)

    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    temporary = peak_temporary(optimizer.step)
    tensors = {id(t): t for state in optimizer.state.values() for t in state.values()}
    state = sum(t.nbytes for t in tensors.values() if isinstance(t, torch.Tensor) and t.ndim)
    return weights / count, max(alive) / count, state / count, temporary / count


def main() -> None:
    print("| optimizer | weights | gradients | state | temporary | together |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, make in ROWS.items():
        found = row(make)
        cells = " | ".join(f"{value:.2f}" for value in (*found, sum(found)))
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
