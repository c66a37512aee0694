"""The whole range of floating point, on every path, against the float64 formula.

From denormal numbers to the largest, and from a zero gradient on: what is promised is a relative
error of 1e-5 in float32, plus what the smallest denormal number, as an error of x, of lr x or of u,
amounts to.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpsgd import LPSGD, LPSGDM, fused
from lpsgd.geometry import Normalize
from lpsgd.peers import Stacey
from tests.oracles import lp

PATHS: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}]
if fused.unavailable() is None:
    PATHS.append({"fused": True})


def check(
    grad: torch.Tensor, lr: float, p: float, eps: float, normalize: Normalize, path: dict[str, bool]
) -> None:
    """One step from zero is -lr u."""
    param = torch.zeros_like(grad, requires_grad=True)
    param.grad = grad.clone()
    LPSGD([param], lr=lr, p=p, eps=eps, normalize=normalize, **path).step()
    # eps below the smallest normal number counts as that number
    working = torch.float64 if grad.dtype == torch.float64 else torch.float32
    limits, stored = torch.finfo(working), torch.finfo(grad.dtype)
    visible = max(eps, limits.tiny)
    x = grad.double().numpy()
    with np.errstate(over="ignore", under="ignore"):
        exact = -lr * _direction(x, p, visible, normalize)
        slope = _slope(x, p, visible, normalize)
        # an error of x, or of u before a factor of its tensor; u itself is rounded, too
        amplified = (
            lr * (slope + 2 * x.size) if normalize else max(lr, 1.0) * np.maximum(slope, 0.5)
        )
        unit = amplified * limits.smallest_normal * limits.eps
    low = stored.smallest_normal * stored.eps  # half precision is rounded once more
    rounding = stored.eps if grad.dtype.itemsize < 4 else 0.0
    allowed = (1e-5 + rounding) * np.abs(exact) + 2 * unit + 2 * low
    ours = param.detach().double().numpy()
    with np.errstate(invalid="ignore"):
        near = np.abs(ours - exact) <= allowed
    # at the edge of the range, infinity is as near as the largest number
    near |= (np.abs(exact) > 0.99 * stored.max) & (np.abs(ours) > 0.98 * stored.max)
    assert near.all(), f"{ours[~near][:3]} instead of {exact[~near][:3]} at {x[~near][:3]}"
    assert np.array_equal(
        np.sign(ours[near]) * np.sign(exact[near]) < 0, np.zeros(near.sum(), bool)
    )


def _direction(x: np.ndarray, p: float, eps: float, normalize: Normalize) -> np.ndarray:
    """The oracle's; for numbers whose squares leave float64, its u times a factor in two parts."""
    if np.abs(x).max() < 1e100 and np.abs(x)[x != 0].min(initial=1.0) > 1e-100:
        return lp.direction(x, p, eps, normalize)
    u = lp.direction(x, p, eps)
    if normalize == "dual":
        top, total = _sum_of_powers(x, 2 - lp.rho(p))
        return u * top ** lp.rho(p) * total ** (lp.rho(p) / (2 - lp.rho(p)))
    if normalize == "rms":
        return u / max(_rms(u), _floor(p, eps))
    return u


def _slope(x: np.ndarray, p: float, eps: float, normalize: Normalize) -> float:
    """How far u can move when an entry of x does by one: where it is steepest, at 0."""
    slope = eps ** -lp.rho(p)
    if normalize == "rms":
        return slope / max(_rms(lp.direction(x, p, eps)), _floor(p, eps))
    if normalize == "dual":
        top, total = _sum_of_powers(x, 2 - lp.rho(p))
        return slope * top ** lp.rho(p) * total
    return slope


def _sum_of_powers(x: np.ndarray, q: float) -> tuple[float, float]:
    """max|x| and the sum of (|x|/max|x|)^q, at least 1"""
    top = float(np.abs(x).max())
    return top, float(np.sum((np.abs(x) / top) ** q)) if top else 1.0


def _rms(u: np.ndarray) -> float:
    top, total = _sum_of_powers(u, 2.0)
    return top * math.sqrt(total / u.size)


def _floor(p: float, eps: float) -> float:
    return eps / (2 * eps) ** lp.rho(p)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("entries", "lr", "p", "eps", "normalize"),
    [
        ([0.0] * 9, 10.0, 2.0, 1e-38, "rms"),
        ([0.0] * 9, 10.0, 1e15, 1e-38, None),
        ([0.0] * 9, 1e3, math.inf, 1e-38, "dual"),
        ([1e37] * 300, 1e-3, 1e15, 1e-8, "dual"),
        ([1e37] * 300, 1.0, math.inf, 1e-8, "dual"),
        ([3e38] * 3000 + [1.0], 1e-3, 50.0, 1e-8, "dual"),
        ([torch.finfo(torch.float32).max], 1e-3, 102.0, 1e-8, "dual"),
        ([torch.finfo(torch.float32).max], 1e-3, 1e8, 1e-8, None),
        ([3.4e38] * 9, 1.0, 1e7, 1e-8, None),
        ([3.4e38] * 9, 1e-3, 1e7, 1e-8, None),
        ([3.4e38] * 9, 10.0, 1e7, 1e-8, "rms"),
        ([1e-45, 1e-40, 1e-38], 1.0, 1e7, 1e-38, None),
        ([1e30, 1e20], 5e-38, 6.0, 1e-8, None),  # the step size is hardly a normal number
    ],
)
def test_edges_that_were_wrong_once(
    entries: list[float],
    lr: float,
    p: float,
    eps: float,
    normalize: Normalize,
    path: dict[str, bool],
) -> None:
    check(torch.tensor(entries), lr, p, eps, normalize, path)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Numbers of every magnitude, or all of one, with zeros among them."""
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    limits = torch.finfo(dtype)
    lowest = math.log10(limits.smallest_normal) - 8
    highest = math.log10(limits.max)
    low = draw(st.floats(lowest, highest))
    high = draw(st.one_of(st.just(low), st.floats(low, highest)))
    count = draw(st.sampled_from([1, 2, 9, 33, 300]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    exponents = torch.rand(count, dtype=torch.float64, generator=generator) * (high - low) + low
    signs = torch.randint(-1, 2, (count,), generator=generator)
    if draw(st.booleans()):
        signs[signs == 0] = 1
    return ((10**exponents).clamp(max=limits.max) * signs).to(dtype)


ANY_STEP = given(
    grad=tensors(),
    lr=st.one_of(st.sampled_from([1e-3, 1.0]), st.floats(-8, 3).map(lambda e: 10.0**e)),
    p=st.one_of(
        st.sampled_from([2.0, 6.0, math.inf]),
        st.floats(2, 100),
        st.floats(0, 16).map(lambda e: 2 + 10.0**e),
    ),
    eps=st.one_of(st.just(1e-8), st.floats(-50, 2).map(lambda e: 10.0**e)),
    normalize=st.sampled_from([None, "dual", "rms"]),
)


def in_every_way(grad: torch.Tensor, lr: float, p: float, eps: float, normalize: Normalize) -> None:
    for path in PATHS:
        if "fused" not in path or grad.dtype != torch.float64:
            check(grad, lr, p, eps, normalize, path)


@settings(deadline=None, max_examples=250)
@ANY_STEP
def test_any_magnitude(**step: Any) -> None:
    in_every_way(**step)


@pytest.mark.slow
@settings(deadline=None, max_examples=20_000)
@ANY_STEP
def test_any_magnitude_for_minutes(**step: Any) -> None:
    in_every_way(**step)


@pytest.mark.parametrize("eps", [1e-50, 1e-40])
def test_a_peer_of_an_eps_that_float32_cannot_hold(eps: float) -> None:
    param = torch.zeros(3, requires_grad=True)
    param.grad = torch.tensor([0.0, 1.0, -2.0])
    Stacey([param], lr=1.0, p=1e15, eps=eps, tau=0.0, betas=(0.0, 0.0)).step()
    assert param.tolist() == pytest.approx([0.0, -1.0, 1.0], rel=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_momentum_near_the_largest_number(path: dict[str, bool]) -> None:
    """Half of it: the difference of gradient and momentum must be a number."""
    param = torch.zeros(3, requires_grad=True)
    optimizer = LPSGDM([param], lr=1.0, p=math.inf, **path)
    m = np.zeros(3)
    for sign in (1, -1, 1):
        grad = torch.tensor([1.6e38, 1e38, 0.0]) * sign
        param.grad = grad
        before = param.detach().double().numpy().copy()
        optimizer.step()
        m = 0.9 * m + 0.1 * grad.double().numpy()
        exact = before - lp.direction(m, math.inf, 1e-8)
        np.testing.assert_allclose(param.detach().double().numpy(), exact, rtol=1e-5, atol=1e-6)
