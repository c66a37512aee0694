"""The theory's ingredients against independent computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from lpsgd import CosineP
from lpsgd.lab.paper.theory import constants, descent, failures, rates
from lpsgd.lab.paper.theory.problems import Problem, power_law, quadratic, smoothness, walk, wells
from tests.oracles.lp import direction, trajectory


@pytest.mark.parametrize("p", [2.0, 2.5, 3.0, 6.0, math.inf])
def test_smoothness_is_attained_and_never_exceeded(p: float) -> None:
    b = power_law(7, 3.0)
    constant = smoothness(b, p)
    draws = torch.randn(2000, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norms = torch.linalg.vector_norm(draws, p, dim=1)
    assert float(((b * draws**2).sum(1) / norms**2).max()) <= constant * (1 + 1e-12)
    # equality in Hölder: |x_i|^(p-2) proportional to b_i
    best = torch.zeros(7, dtype=torch.float64)
    if p == 2:
        best[0] = 1.0
    else:
        best = b ** (0.0 if math.isinf(p) else 1 / (p - 2))
    attained = (b * best**2).sum() / torch.linalg.vector_norm(best, p) ** 2
    assert float(attained) == pytest.approx(constant)


def test_one_constant_for_all_p_is_up_to_d_times_larger() -> None:
    (_, d, isotropic) = descent.smoothness_table()[2]
    assert isotropic[0] == 1
    assert isotropic[-1] == pytest.approx(d)
    for p, ratio in zip(descent.EXPONENTS, isotropic, strict=True):
        assert ratio == pytest.approx(d ** (1.0 if math.isinf(p) else (p - 2) / p))


@pytest.mark.parametrize("make", [quadratic, wells])
def test_problems_have_the_gradient_and_the_curvature_that_they_say(make) -> None:
    problem: Problem = make(power_law(4, 2.0), torch.zeros(4, dtype=torch.float64))
    points = torch.linspace(-3, 3, 400, dtype=torch.float64)[:, None].expand(-1, 4).clone()
    points.requires_grad_()
    (slope,) = torch.autograd.grad(problem.value(points).sum(), points, create_graph=True)
    assert torch.allclose(slope, problem.gradient(points.detach()), atol=1e-12)
    (bend,) = torch.autograd.grad(slope.sum(), points)
    largest = bend.abs().amax(0)
    assert (largest <= problem.bounds * (1 + 1e-12)).all()
    assert torch.allclose(largest, problem.bounds, rtol=1e-3)


def test_walks_are_the_papers_algorithms() -> None:
    problem = quadratic(power_law(5, 2.0), torch.linspace(-1, 1, 5, dtype=torch.float64))
    schedule = CosineP(6.0, total_steps=30)
    for momentum in (None, 0.9):
        taken = list(walk(problem, steps=30, lr=0.1, p=schedule, momentum=momentum, noise=0.2))
        grads = []  # the noisy gradients follow from the steps' own seed
        draw = torch.Generator().manual_seed(0)
        for step in taken:
            noise = torch.randn(step.before.shape, generator=draw, dtype=torch.float64)
            grads.append([(step.gradient + 0.2 * noise).numpy()])
        (end,) = trajectory(
            [problem.start.expand(8, -1).numpy()],
            grads,
            p=schedule,
            lr=lambda t: 0.1,
            momentum=momentum or 0.0,
        )
        assert taken[-1].after.numpy() == pytest.approx(end, abs=1e-10)


def test_the_lemmas_hold_and_would_not_with_the_euclidean_constant() -> None:
    checks = descent.lemma_checks(steps=100, replicates=4)
    assert len(checks) == 12
    for check in checks:
        if check.constant == "L of 2":
            continue
        assert check.violations == 0
        assert check.largest_share <= 1 + 1e-9
    wrong = [c for c in checks if c.constant == "L of 2" and c.problem == "diagonal quadratic"]
    assert all(check.violations > 0 for check in wrong)


def test_imbalance() -> None:
    for ratio in (10.0, 4000.0):
        found = descent.imbalance(ratio)
        x = np.array([ratio, 1.0])
        for p, value in zip((2.0, 3.0, 6.0, math.inf), found, strict=True):
            u = direction(x, p, 1e-14)
            assert value == pytest.approx(u[0] / u[1], rel=1e-6)


@pytest.mark.parametrize("p", [2.0, 3.0, 6.0])
@pytest.mark.parametrize("mean", [0.0, 1e-3, 0.4, -3.0])
def test_expected_direction_against_adaptive_quadrature(p: float, mean: float) -> None:
    def integrand(y: float) -> float:
        return float(direction(np.array([y]), p, 1e-8)[0]) * stats.norm.pdf(y, mean, 0.5)

    limits = (mean - 5, mean + 5)
    expected, _ = integrate.quad(integrand, *limits, points=[0.0, mean], limit=400)
    found = constants.expected_direction(torch.tensor([mean], dtype=torch.float64), 0.5, p)
    assert float(found) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_fitted_constants_are_the_best_on_the_pilot() -> None:
    rng = np.random.default_rng(0)
    squared = rng.uniform(0.1, 4, 500)
    pilot = constants.Moments(squared, 0.7 * squared + rng.uniform(0, 1, 500), 2 + 0.5 * squared)
    found = constants.fit(pilot)
    assert found.pointwise
    assert found.c1 == pytest.approx((pilot.alignment / squared).min())
    assert (found.c2, found.c3) == pytest.approx((2, 0.5))
    assert constants.violations(pilot, found) == (0, 0)
    worse = constants.Moments(squared, 0.5 * pilot.alignment, 1.1 * pilot.size)
    shares = constants.violations(worse, found)
    assert shares[0] > 0.05
    assert shares[1] == 1


def test_without_a_pointwise_c1_the_sums_are_taken() -> None:
    pilot = constants.Moments(np.array([1.0, 1.0]), np.array([-0.5, 2.5]), np.array([1.0, 1.0]))
    found = constants.fit(pilot)
    assert not found.pointwise
    assert (found.c1, found.lowest_c1) == (1.0, -0.5)


def test_rates_lie_below_their_bounds() -> None:
    for rate in rates.measure_rates((5, 50, 500)):
        c, gap, top = rate.constants, rate.gap, rate.smoothness
        for point in rate.points:
            assert point.measured.mean is not None
            assert point.measured.mean < point.bound
            lr = min(c.c1 / (top * c.c3), math.sqrt(2 * gap / (top * c.c2 * point.horizon)))
            assert point.lr == pytest.approx(lr)
            terms = (2 * gap / (lr * c.c1 * point.horizon), top * lr * c.c2 / c.c1)
            assert point.bound == pytest.approx(sum(terms))
        means = [point.measured.mean for point in rate.points]
        assert rate.slope.mean == pytest.approx(
            stats.linregress(np.log([5, 50, 500]), np.log(means)).slope, abs=0.02
        )
        assert rate.slope.mean < -0.2
    # LPSGDM's pilot has steps against the gradient: no positive c1 holds at every step
    assert not rate.constants.pointwise


def test_alignment_falls_with_the_scale_of_the_gradient() -> None:
    scales = np.array([1.0, 1e3])
    for p, values in failures.alignment_by_scale(scales).items():
        rho = 1.0 if math.isinf(p) else (p - 2) / (p - 1)
        assert values[1] / values[0] == pytest.approx(1000**-rho, rel=1e-3)


def test_momentum_goes_uphill_after_an_overshoot() -> None:
    found = failures.overshoot()
    assert 0.05 < (found < 0).mean() < 0.6
    assert found[0] > 0.5


def test_skewed_noise_turns_the_direction_round() -> None:
    noise = failures.SKEWED
    assert sum(jump * chance for jump, chance in noise) == pytest.approx(0)
    found = failures.skewed_noise(steps=2000, replicates=100, lr=0.05)
    assert found.alignment[2.0] == pytest.approx(0.25)
    assert all(found.alignment[p] < 0 for p in (3.0, 6.0, math.inf))
    # by hand: 0.9 (1 - x)^0.2 = 0.1 (9 + x)^0.2 for x < 1
    x = found.settles_at
    assert 0.9 * (1 - x) ** 0.2 == pytest.approx(0.1 * (9 + x) ** 0.2, rel=1e-3)
    assert found.constant[-200:].mean() == pytest.approx(x, abs=0.1)
    assert abs(found.annealed[-100:].mean()) < 0.15


def test_decay_shrinks_the_parameters_and_respects_its_bound() -> None:
    found = failures.decoupled_decay(steps=400)
    ends = [float(d.norms[-1]) for d in found]
    assert ends == sorted(ends, reverse=True)
    for d in found[1:]:
        assert d.bound is not None
        assert d.largest_entry <= d.bound


def test_the_rates_tell_what_they_measure() -> None:
    """At cpu scale they take a minute; whoever waits is told which horizon is next."""
    told: list[str] = []
    rates.measure_rates([5, 50], told.append)
    theorems = ("Theorem 1 (LPSGD)", "Theorem 2 (LPSGDM)")
    assert told == [f"{theorem}, T = {T}" for theorem in theorems for T in (5, 50)]
