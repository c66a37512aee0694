"""``torch.compile(optimizer.step)``: the same trajectory, compiled once although p and lr move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from lpsgd import LPSGD, LPSGDM, CosineP, LinearAlpha
from tests.optimizer_problem import gradients, largest_error, run, start
from tests.torch_versions import needs_compiled_step

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    needs_compiled_step,
]
SHAPES = ((5, 7), (3,))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def by_hand(t: int) -> float:
    return max(2.0, 6 - 0.3 * t)


def follow(
    cls: type[LPSGD], backend: str | None, p: Any, lr: Any, **options: Any
) -> tuple[list[torch.Tensor], list[int], LPSGD]:
    """A run in which lr changes each step, and p by its schedule or by hand, and ends at 2."""
    params, grads = start(shapes=SHAPES), gradients(50, shapes=SHAPES)
    optimizer = cls(
        params, lr=lr, p=by_hand(0) if p == "by hand" else p, weight_decay=0.1, **options
    )
    step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
    graphs = []
    for t, row in enumerate(grads):
        if p == "by hand":
            optimizer.param_groups[0]["p"] = by_hand(t)
        run(optimizer, params, [row], lr=lambda _, t=t: 0.05 / (1 + t), step=step)
        graphs.append(counters["stats"]["unique_graphs"])
    return params, graphs, optimizer


# Both compile anew in the same cases; inductor also generates code, which takes a compiler of C++
# ten seconds for each.
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("cls", "p", "tensor_lr", "options"),
    [
        (LPSGDM, CosineP(6, total_steps=30), True, {}),
        (LPSGDM, CosineP(6, total_steps=30), False, {}),
        (LPSGDM, CosineP(6, total_steps=30), False, {"capturable": True}),
        (LPSGDM, CosineP(6, total_epochs=3, steps_per_epoch=10), False, {"foreach": False}),
        (LPSGDM, CosineP(6, total_steps=30), False, {"state_dtype": torch.bfloat16}),
        (LPSGDM, "by hand", False, {}),
        (LPSGDM, "by hand", True, {"normalize": "dual"}),
        (LPSGD, LinearAlpha(total_steps=30), False, {"normalize": "rms"}),
        (LPSGD, CosineP(6, total_steps=30), True, {"normalize": "dual", "foreach": False}),
    ],
)
def test_compiled_equals_eager_and_never_again(
    cls: type[LPSGD], p: Any, tensor_lr: bool, options: dict[str, Any], backend: str
) -> None:
    def lr() -> Any:
        return torch.tensor(0.05, dtype=torch.float64) if tensor_lr else 0.05

    eager, _, plain = follow(cls, None, p, lr(), **options)
    compiled, graphs, optimizer = follow(cls, backend, p, lr(), **options)
    assert largest_error(compiled, eager) < 1e-12
    assert graphs[0] >= 1, "nothing was compiled"
    assert graphs[2] == graphs[-1], f"compiled again after warm-up: {graphs}"
    params = optimizer.param_groups[0]["params"]
    assert int(optimizer.state[params[0]]["step"]) == 50
    assert float(optimizer.param_groups[0]["p"]) == float(plain.param_groups[0]["p"]) == 2.0


def test_compiled_float32_halves_and_groups() -> None:
    """Several groups and dtypes in one graph; float32 within a few ulp of the eager step."""

    def build() -> tuple[list[torch.Tensor], LPSGDM]:
        params = [*start(torch.float32, SHAPES), *start(torch.bfloat16, SHAPES)]
        groups = [
            {"params": params[:2], "maximize": True},
            {"params": params[2:], "lr": 0.01, "p": 3.0},
        ]
        optimizer = LPSGDM(groups, lr=0.05, p=CosineP(6, total_steps=9), fused=False)
        return params, optimizer

    grads = [
        [*a, *b]
        for a, b in zip(
            gradients(10, torch.float32, SHAPES), gradients(10, torch.bfloat16, SHAPES), strict=True
        )
    ]
    (eager, plain), (compiled, optimizer) = build(), build()
    run(plain, eager, grads)
    run(optimizer, compiled, grads, step=torch.compile(optimizer.step))
    assert largest_error(compiled[:2], eager[:2]) < 16 * 2.0**-23
    assert largest_error(compiled[2:], eager[2:]) < 2 * 2.0**-8


def test_capturable_keeps_tensors_on_the_device() -> None:
    (x,) = start()[:1]
    optimizer = LPSGDM([x], p=CosineP(6, total_steps=10), capturable=True)
    held = optimizer.param_groups[0]["p"]
    assert held.device == x.device
    for _ in range(3):
        x.grad = torch.ones_like(x)
        optimizer.step()
    assert optimizer.param_groups[0]["p"] is held  # the same memory, as a captured graph needs
    assert held.item() == pytest.approx(CosineP(6, total_steps=10)(2))
    assert optimizer.state[x]["step"].device == x.device
    meta = torch.zeros(3, device="meta", requires_grad=True)
    optimizer = LPSGDM([meta], p=3.0, capturable=True)
    meta.grad = torch.zeros_like(meta)
    optimizer.step()
    assert optimizer.param_groups[0]["p"].device.type == "meta"
    assert optimizer.state[meta]["step"].device.type == "meta"
