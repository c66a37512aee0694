"""The variants of LPSGDM behind `decay`: step lengths against direct formulas, and resuming."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from lpsgd import LPSGDM
from lpsgd.lab.paper.variants import MatchedLPSGDM, matched
from tests.oracles.lp import direction, paper_p

SHAPES = ((4, 3), (5,))


def gradients(steps: int) -> list[list[torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [
        [0.01 * torch.randn(s, generator=draw, dtype=torch.float64) for s in SHAPES]
        for _ in range(steps)
    ]


def start() -> list[torch.Tensor]:
    return [torch.ones(s, dtype=torch.float64, requires_grad=True) for s in SHAPES]


def run(optimizer: torch.optim.Optimizer, params: list[torch.Tensor], grads) -> list[np.ndarray]:
    moves = []
    for row in grads:
        before = [p.detach().clone() for p in params]
        for param, grad in zip(params, row, strict=True):
            param.grad = grad.clone()
        optimizer.step()
        moved = [(b - p.detach()).flatten() for p, b in zip(params, before, strict=True)]
        moves.append(torch.cat(moved).numpy())
    return moves


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


@pytest.mark.parametrize("length", ["rms", "dual", "whole"])
def test_steps_follow_the_formula_and_the_first_is_as_long_as_the_papers(length: str) -> None:
    epochs, lr, beta, eps = 6, 0.1, 0.9, 1e-8
    grads = gradients(epochs)
    params = start()
    schedule = lambda step: paper_p(6.0, int(step) + 1, epochs)  # noqa: E731
    moves = run(MatchedLPSGDM(params, length=length, lr=lr, p=schedule), params, grads)
    plain = start()
    paper = run(LPSGDM(plain, lr=lr, p=schedule), plain, grads)
    assert rms(moves[0]) == pytest.approx(rms(paper[0]), rel=1e-9)

    m = [np.zeros(s) for s in SHAPES]
    match = None
    for t, row in enumerate(grads):
        p = schedule(t)
        m = [beta * a + (1 - beta) * g.numpy() for a, g in zip(m, row, strict=True)]
        if length == "whole":
            everything = np.concatenate([a.ravel() for a in m])
            q, rho = p / (p - 1), (p - 2) / (p - 1)
            factor = np.sum(np.abs(everything) ** q) ** (rho / q)
            u = np.concatenate([direction(a, p, eps).ravel() * factor for a in m])
        else:
            u = np.concatenate([direction(a, p, eps, length).ravel() for a in m])
        if match is None:
            match = rms(paper[0]) / rms(lr * u)
        assert moves[t] == pytest.approx(lr * match * u, rel=1e-6, abs=1e-15)


def test_the_decay_keeps_the_plain_learning_rate() -> None:
    params = start()
    optimizer = MatchedLPSGDM(params, length="rms", lr=0.1, p=3.0, weight_decay=0.5)
    run(optimizer, params, gradients(1))
    plain = start()
    run(MatchedLPSGDM(plain, length="rms", lr=0.1, p=3.0), plain, gradients(1))
    for with_decay, without in zip(params, plain, strict=True):
        assert torch.allclose(with_decay, without - 0.1 * 0.5)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


def test_a_resumed_run_keeps_its_match() -> None:
    grads = gradients(6)
    model = nn.ParameterList(start())
    settings = {"length": "dual", "p": 6.0, "total_epochs": 6, "steps_per_epoch": 1, "lr": 0.1}
    whole = matched(model, **settings)
    run(whole, list(model.parameters()), grads[:3])
    halfway = copy.deepcopy(whole.state_dict())
    other = nn.ParameterList([p.detach().clone() for p in model.parameters()])
    resumed = matched(other, **settings)
    resumed.load_state_dict(halfway)
    a = run(whole, list(model.parameters()), grads[3:])
    b = run(resumed, list(other.parameters()), grads[3:])
    assert np.array_equal(np.stack(a), np.stack(b))


def test_wrong_length_is_named() -> None:
    with pytest.raises(ValueError, match="length='l2': allowed: rms, dual, whole"):
        MatchedLPSGDM(start(), length="l2")
