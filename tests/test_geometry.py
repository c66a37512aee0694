"""The l_p formulas against numpy, scipy's minimiser and their own definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from lpsgd import geometry
from tests.oracles import lp

exponents = st.one_of(
    st.floats(min_value=2.0, max_value=50.0), st.just(2.0), st.just(math.inf), st.just(1e6)
)


@given(exponents)
def test_exponents_are_those_of_the_paper(p: float) -> None:
    if math.isinf(p):
        assert (geometry.alpha(p), geometry.rho(p), geometry.dual_exponent(p)) == (0, 1, 1)
        return
    assert geometry.rho(p) == pytest.approx((p - 2) / (p - 1), abs=1e-15)
    assert geometry.alpha(p) + geometry.rho(p) == pytest.approx(1)
    assert 1 / p + 1 / geometry.dual_exponent(p) == pytest.approx(1)
    as_tensor = geometry.rho(torch.tensor(p, dtype=torch.float64))
    assert float(as_tensor) == pytest.approx(geometry.rho(p), abs=1e-15)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    exponents,
    st.sampled_from([1e-8, 1e-3, 1.0]),
    st.sampled_from([None, "dual", "rms"]),
)
def test_direction_equals_the_formula(
    x: list[float], p: float, eps: float, how: str | None
) -> None:
    ours = geometry.normalized_direction(torch.tensor(x, dtype=torch.float64), p, eps, how)
    theirs = lp.direction(np.array(x), p, eps, how)
    assert np.allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("p", [2.0, 3.0, 6.0, 20.0])
def test_dual_is_steepest_descent(p: float) -> None:
    """-u solves argmin <g, d> + 1/2 ||d||_p^2, found here by scipy without knowing the solution."""
    g = np.array([1.5, -0.2, 0.7, 2.0])
    best = minimize(
        lambda d: g @ d + 0.5 * np.sum(np.abs(d) ** p) ** (2 / p),
        x0=-g,
        method="Nelder-Mead",
        options={
            "xatol": 1e-10,
            "fatol": 1e-14,
            "maxiter": 40000,
            "maxfev": 40000,
            "adaptive": True,
        },
    )
    u = geometry.normalized_direction(torch.tensor(g), p, eps=1e-300, normalize="dual").numpy()
    value = g @ -u + 0.5 * np.sum(np.abs(u) ** p) ** (2 / p)
    assert value <= best.fun + 1e-9  # no worse than what the search finds
    assert np.allclose(-u, best.x, atol=2e-3)
    # and the least value is -1/2 ||g||_q^2
    q = p / (p - 1)
    assert value == pytest.approx(-0.5 * np.sum(np.abs(g) ** q) ** (2 / q), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e30])
@pytest.mark.parametrize("p", [2.0, 2.5, 6.0, math.inf])
def test_norms_stay_in_range_in_float32(p: float, scale: float) -> None:
    x = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = geometry.dual_exponent(p)
    exact = float((x.abs() ** q).sum() ** (1 / q)) * scale
    assert float(geometry.lp_norm((x * scale).float(), q)) == pytest.approx(exact, rel=1e-5)
    mixed = torch.tensor([1e-30, 1.0, 1e30], dtype=torch.float32)
    assert float(geometry.lp_norm(mixed, q)) == pytest.approx(1e30, rel=1e-5)


def test_norm_of_zeros_and_denormals() -> None:
    assert float(geometry.lp_norm(torch.zeros(3), 1.5)) == 0
    assert float(geometry.lp_norm(torch.full((2,), 1e-42), 2.0)) == pytest.approx(
        1.414e-42, rel=1e-2
    )


def test_rms_fades_out_below_eps() -> None:
    """Entries of eps have rms 1; a hundredth of that is not blown up; zeros give zero."""
    for p in (2.0, 6.0, math.inf):
        near = torch.full((10,), 1e-8, dtype=torch.float64)
        assert float(
            geometry.rms(geometry.normalized_direction(near, p, normalize="rms"))
        ) == pytest.approx(1)
        far = geometry.normalized_direction(near / 100, p, normalize="rms")
        assert float(geometry.rms(far)) < 0.05
        assert not geometry.normalized_direction(near * 0, p, normalize="rms").any()


def test_density_of_known_gradients() -> None:
    g = torch.randn(50, generator=torch.Generator().manual_seed(0))
    a = np.abs(g.double().numpy())
    expected = a.sum() ** 2 / (50 * (a**2).sum())
    assert float(geometry.gradient_density(g)) == pytest.approx(expected, rel=1e-6)
    assert float(geometry.gradient_density([g[:20], g[20:].reshape(5, 6)])) == pytest.approx(
        expected, rel=1e-6
    )
    assert float(geometry.gradient_density(g * 1e30)) == pytest.approx(expected, rel=1e-5)
    assert float(geometry.gradient_density(torch.zeros(3))) == 0
    assert float(geometry.gradient_density([])) == 0
    assert math.isnan(float(geometry.gradient_density(torch.tensor([1.0, float("nan")]))))
    assert float(geometry.gradient_density(torch.eye(1, 100))) == pytest.approx(0.01)
