"""The step inside backward: the same weights and state, one gradient at a time, less memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpsgd import LPSGD, LPSGDM, CosineP, LPMuon, param_groups
from lpsgd.backward import step_in_backward
from lpsgd.peers import Lion

STEPS = 6
MAKERS: dict[str, Any] = {
    "LPSGD": lambda groups: LPSGD(groups, lr=0.01, total_steps=STEPS),
    "LPSGDM": lambda groups: LPSGDM(groups, lr=0.01, total_steps=STEPS),
    "rms": lambda groups: LPSGDM(groups, lr=0.01, total_steps=STEPS, normalize="rms"),
    "dual": lambda groups: LPSGDM(groups, lr=0.01, p=4.0, normalize="dual", foreach=False),
    "capturable": lambda groups: LPSGDM(groups, lr=0.01, total_steps=STEPS, capturable=True),
    "LPMuon": lambda groups: LPMuon(groups, lr=0.01, p=CosineP(6, total_steps=STEPS)),
    "Lion": lambda groups: Lion(groups, lr=0.01),
}


def a_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def train(name: str, inside: bool) -> tuple[list[Tensor], dict[str, Any], int]:
    """The weights, the state dict, and the largest number of gradients that were alive at once."""
    model = a_model()
    optimizer = MAKERS[name](param_groups(model, 0.1))
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
    alive = [0]
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(
            lambda _: alive.append(sum(p.grad is not None for p in model.parameters()))
        )
    if inside:
        step_in_backward(optimizer)
    for step in range(STEPS):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return [param.detach() for param in model.parameters()], optimizer.state_dict(), max(alive)


@pytest.mark.parametrize("name", MAKERS)
def test_weights_and_state_are_those_of_a_step_after_backward(name: str) -> None:
    after, state_after, many = train(name, inside=False)
    within, state_within, one = train(name, inside=True)
    torch.testing.assert_close(within, after, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(state_within["state"], state_after["state"], rtol=1e-6, atol=1e-7)
    assert state_within["param_groups"] == state_after["param_groups"]
    assert state_within["state"][0]["step"] == STEPS
    assert (many, one) == (6, 1)


def test_what_has_no_gradient_waits_and_the_count_is_shared() -> None:
    first, second = (torch.ones(3, requires_grad=True) for _ in range(2))
    optimizer = LPSGDM([first, second], lr=0.1, total_steps=4)
    end = step_in_backward(optimizer)
    first.sum().backward()
    optimizer.step()
    (first.sum() + second.sum()).backward()
    assert optimizer.state[first]["step"] is optimizer.state[second]["step"]
    assert optimizer.state[first]["step"] == 1  # step() counts it
    assert optimizer.param_groups[0]["p"] == CosineP(6, total_steps=4)(1)
    end()
    assert optimizer.state[first]["step"] == 2
    first.sum().backward()
    assert first.grad is not None


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="must be one of lpsgd, such as LPSGDM, got a SGD"):
        step_in_backward(torch.optim.SGD([torch.ones(2)]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="differentiable=True cannot step inside backward"):
        step_in_backward(LPSGDM([torch.ones(2)], differentiable=True))


PEAK = """
import sys, torch
from lpsgd import LPSGD
from lpsgd.backward import step_in_backward
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(40)))
optimizer = LPSGD(model.parameters(), lr=1e-3, p=4.0)
if sys.argv[1] == "inside":
    step_in_backward(optimizer)
def peak():
    # not ru_maxrss, which a process inherits from the one that started it
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) / 1024
before = peak()
for _ in range(2):
    model(torch.ones(2, 1024)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_peak_of_memory_is_lower_by_the_gradients() -> None:
    """160 MiB of weights, and of gradients if they all live to the end of backward."""

    def peak(way: str) -> float:
        command = [sys.executable, "-c", PEAK, way]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(done.stdout)

    after, inside = peak("after"), peak("inside")
    assert after > 150
    assert inside < after / 2  # 64 and 168 MiB were seen
