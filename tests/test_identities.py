"""What the rule becomes at its limits, against torch's optimizers and other methods' formulas."""

from __future__ import annotations

import math

import pytest
import torch

from lpsgd import LPSGD, LPSGDM, CosineP
from tests.optimizer_problem import arrays, gradients, largest_error, run, start


@pytest.mark.parametrize("foreach", [False, True])
def test_p_two_is_sgd(foreach: bool) -> None:
    ours, theirs = start(), start()
    run(LPSGD(ours, lr=0.1, p=2.0, foreach=foreach), ours, gradients())
    run(torch.optim.SGD(theirs, lr=0.1), theirs, gradients())
    assert largest_error(ours, theirs) < 1e-14


@pytest.mark.parametrize("foreach", [False, True])
def test_p_two_with_momentum_is_sgd_on_the_average(foreach: bool) -> None:
    """torch's SGD with dampening starts its buffer at g, not (1-b)g; the average is summed here."""
    params, grads = start(), gradients()
    before = arrays(params)
    run(LPSGDM(params, lr=0.1, momentum=0.8, p=2.0, foreach=foreach), params, grads)
    for i, theta in enumerate(before):
        for t in range(len(grads)):
            m = sum(0.2 * 0.8 ** (t - s) * arrays(grads[s])[i] for s in range(t + 1))
            theta -= 0.1 * m
    assert largest_error(params, before) < 1e-12


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_p_inf_is_adam_without_averages(eps: float, foreach: bool) -> None:
    """Adam with betas (0, 0) divides g by |g| + eps: the paper's remark on Adam and signSGD."""
    ours, theirs = start(), start()
    run(LPSGD(ours, lr=0.1, p=math.inf, eps=eps, foreach=foreach), ours, gradients())
    run(torch.optim.Adam(theirs, lr=0.1, betas=(0.0, 0.0), eps=eps), theirs, gradients())
    assert largest_error(ours, theirs) < 1e-12


@pytest.mark.parametrize("foreach", [False, True])
def test_decay_is_adamws(foreach: bool) -> None:
    ours, theirs = start(), start()
    run(LPSGD(ours, lr=0.1, p=math.inf, weight_decay=0.3, foreach=foreach), ours, gradients())
    run(torch.optim.AdamW(theirs, lr=0.1, betas=(0.0, 0.0), weight_decay=0.3), theirs, gradients())
    assert largest_error(ours, theirs) < 1e-12


@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("foreach", [False, True])
def test_without_momentum_lpsgdm_is_lpsgd(foreach: bool, normalize: str | None) -> None:
    one, two = start(), start()
    schedule = CosineP(7, total_steps=60)
    run(
        LPSGDM(one, momentum=0.0, p=schedule, foreach=foreach, normalize=normalize),
        one,
        gradients(),
    )
    run(LPSGD(two, p=schedule, foreach=foreach, normalize=normalize), two, gradients())
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_stacey_without_coupling_is_lpsgdm() -> None:
    """c*(|c|+eps)^((2-p)/(p-1)) with b1 = b2 = beta: then c is the momentum after its update."""
    p, beta, lr, eps = 5.0, 0.9, 0.1, 1e-8
    params, grads = start(), gradients()
    theta, m = arrays(params), [0 * a for a in arrays(params)]
    run(LPSGDM(params, lr=lr, momentum=beta, p=p), params, grads)
    for row in grads:
        for i, g in enumerate(arrays(row)):
            c = beta * m[i] + (1 - beta) * g
            theta[i] -= lr * c * (abs(c) + eps) ** ((2 - p) / (p - 1))
            m[i] = beta * m[i] + (1 - beta) * g
    assert largest_error(params, theta) < 1e-12


@pytest.mark.parametrize("p", [2.0, 3.0, 8.0, math.inf])
def test_dual_step_has_the_length_of_the_dual_norm(p: float) -> None:
    """||d||_p = lr ||g||_q, for each tensor by itself."""
    q = 1.0 if math.isinf(p) else p / (p - 1)
    for foreach in (False, True):
        params = [torch.zeros_like(x) for x in start()]
        row = [torch.randn_like(x) for x in params]
        run(LPSGD(params, lr=0.1, p=p, eps=1e-30, normalize="dual", foreach=foreach), params, [row])
        for d, g in zip(params, row, strict=True):
            length = torch.linalg.vector_norm(d, p)
            assert float(length) == pytest.approx(
                0.1 * float(torch.linalg.vector_norm(g, q)), rel=1e-9
            )


def test_rms_step_has_the_length_of_lr() -> None:
    for p in (2.0, 4.0, math.inf):
        for foreach in (False, True):
            params = [torch.zeros_like(x) for x in start()]
            row = [torch.randn_like(x) for x in params]
            run(LPSGD(params, lr=0.1, p=p, normalize="rms", foreach=foreach), params, [row])
            for d in params:
                assert float(d.square().mean().sqrt()) == pytest.approx(0.1, rel=1e-6)
