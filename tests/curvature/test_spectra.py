"""Eigenvalues, densities and estimators against exact spectra."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
import torch
from torch import nn

from lpsgd.curvature import (
    SpectralDensity,
    diagonal,
    diagonal_concentration,
    frobenius,
    hessian_operator,
    layerwise,
    spectral_density,
    statistics,
    top_eigenvalues,
    trace,
)
from tests.curvature.nets import CE, PROBLEMS, exact_hessian, mlp
from tests.curvature.test_operator import operator_of


def random_symmetric(values, seed=0):
    """A matrix with these eigenvalues in random directions."""
    generator = torch.Generator().manual_seed(seed)
    size = len(values)
    q, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    matrix = (q * torch.as_tensor(values, dtype=torch.float64)) @ q.T
    return (matrix + matrix.T) / 2


@pytest.fixture(scope="module")
def exact():
    return {name: exact_hessian(make()) for name, make in PROBLEMS.items()}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
def test_top_eigenvalues_equal_the_exact_ones(name, which, exact):
    matrix = exact[name]
    k = 6
    values = torch.linalg.eigvalsh(matrix).numpy()
    wanted = {
        "LA": values[-k:],
        "SA": values[:k],
        "LM": values[np.argsort(-np.abs(values))[:k]],
        "BE": np.concatenate([values[: k // 2], values[-k // 2 :]]),
    }[which]
    pairs = top_eigenvalues(operator_of(PROBLEMS[name]()), k, which, tol=1e-12)
    assert pairs.converged
    assert np.abs(pairs.values - np.sort(wanted)[::-1]).max() < 1e-8
    gram = pairs.vectors.T @ pairs.vectors
    assert (gram - torch.eye(k, dtype=torch.float64)).abs().max() < 1e-12
    residuals = (matrix @ pairs.vectors - pairs.vectors * torch.tensor(pairs.values.copy())).norm(
        dim=0
    )
    assert np.abs(residuals.numpy() - pairs.residuals).max() < 1e-12


def test_restarts_reach_the_same_eigenvalues_in_a_small_basis():
    values = np.concatenate([np.linspace(-1, 1, 395), [1.5, 1.6, 1.7, 1.8, 2.0]])
    matrix = random_symmetric(values)
    pairs = top_eigenvalues(matrix, 4, basis=10, tol=1e-12)
    assert pairs.products > 10
    assert np.abs(pairs.values - [2.0, 1.8, 1.7, 1.6]).max() < 1e-8


def test_no_ghosts_where_plain_lanczos_has_them():
    values = np.concatenate([np.linspace(0, 1, 300), [20.0, 50.0, 100.0]])
    matrix = random_symmetric(values)
    steps = 120
    vector = torch.randn(303, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alphas, betas, previous = [], [], torch.zeros(303, dtype=torch.float64)
    vector /= vector.norm()
    beta = 0.0
    for _ in range(steps):  # the textbook three-term recurrence
        image = matrix @ vector - beta * previous
        alphas.append(float(vector @ image))
        image -= alphas[-1] * vector
        beta = float(image.norm())
        betas.append(beta)
        previous, vector = vector, image / beta
    plain = np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas[:-1], 1) + np.diag(betas[:-1], -1))
    assert (plain > 10).sum() > 3
    density = spectral_density(matrix, probes=1, lanczos=steps)
    assert np.abs(density.nodes[0][density.nodes[0] > 10] - [20, 50, 100]).max() < 1e-8


@pytest.mark.parametrize("name", PROBLEMS)
def test_quadrature_is_exact_for_polynomials(name, exact):
    """Σ ω θ^k = vᵀ H^k v for k < 2m, with v the probe itself."""
    from lpsgd.curvature.lanczos import probe_generator, sphere_probe

    matrix = exact[name]
    operator = operator_of(PROBLEMS[name]())
    density = spectral_density(operator, probes=1, lanczos=5, seed=3)
    probe = sphere_probe(operator, probe_generator(3))
    image, norm = probe, float(torch.linalg.matrix_norm(matrix, 2))
    for order in range(10):
        moment = density.weights[0] @ density.nodes[0] ** order
        assert abs(moment - float(probe @ image)) < 1e-12 * max(1.0, norm**order)
        image = matrix @ image


@pytest.mark.parametrize("name", PROBLEMS)
def test_density_moments_lie_within_their_stated_errors(name, exact):
    matrix = exact[name]
    values = torch.linalg.eigvalsh(matrix).numpy()
    densities = [spectral_density(matrix, probes=8, lanczos=8, seed=seed) for seed in range(60)]
    for order in (1, 2, 3, 4):
        truth = (values**order).mean()
        estimates = [density.moment(order) for density in densities]
        scores = [(each.value - truth) / each.standard_error for each in estimates]
        assert np.mean(np.abs(scores) < 3) >= 0.9
        # Unbiased with the stated error: the mean of z-scores is near 0 and their spread near 1
        # (few eigenvalues dominate high moments, so that their error is far from normal).
        assert abs(np.median(scores)) < 0.6
        assert 0.6 < np.std(scores) < 2.0


@pytest.mark.parametrize("probes", [1, 2, 4])
def test_a_probe_that_misses_the_outliers_does_not_call_its_error_small(probes):
    """Where three eigenvalues make up the moments, few probes must still state honest errors."""
    values = np.concatenate([[50.0, 35.0, 20.0], np.linspace(0, 0.02, 297)])
    matrix = torch.diag(torch.as_tensor(values))
    densities = [spectral_density(matrix, probes, lanczos=12, seed=seed) for seed in range(200)]
    for order in (1, 2):
        estimates = [density.moment(order) for density in densities]
        errors = np.array([estimate.standard_error for estimate in estimates])
        found = np.array([estimate.value for estimate in estimates])
        assert np.mean(np.abs(found - (values**order).mean()) <= 3 * errors) >= 0.99
        # and not by being wide throughout
        assert np.median(errors) < 1.5 * found.std()


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("deflate", [0, 6, "pairs"])
def test_trace_and_norm_lie_within_three_standard_errors(name, deflate, exact):
    matrix = exact[name]
    if deflate == "pairs":
        deflate = top_eigenvalues(matrix, 5, "LM")
    seeds = range(100)
    for measure, truth in (
        (trace, float(matrix.trace())),
        (frobenius, float(matrix.square().sum().sqrt())),
    ):
        estimates = [measure(matrix, 48, deflate=deflate, seed=seed) for seed in seeds]
        values = np.array([estimate.value for estimate in estimates])
        errors = np.array([estimate.standard_error for estimate in estimates])
        assert np.mean(np.abs(values - truth) <= 3 * errors) >= 0.97
        assert abs(values.mean() - truth) <= 4 * values.std() / sqrt(len(seeds)) + 0.01 * abs(truth)
        # The stated error is the true one.
        assert np.sqrt((errors**2).mean()) == pytest.approx(values.std(), rel=0.2)


def test_trace_of_an_operator_is_that_of_its_matrix(exact):
    problem = mlp()
    for deflate in (0, 6):
        ours = trace(operator_of(problem), 8, deflate=deflate, seed=5)
        assert ours.value == pytest.approx(trace(exact["mlp"], 8, deflate=deflate, seed=5).value)


def test_deflation_reduces_the_error():
    matrix = random_symmetric(np.concatenate([np.linspace(-0.1, 0.1, 200), [50.0, 80.0, 100.0]]))
    plain, deflated = trace(matrix, 16), trace(matrix, 16, deflate=12)
    assert deflated.standard_error < plain.standard_error / 50
    assert abs(deflated.value - 230) < 3 * deflated.standard_error
    plain, deflated = frobenius(matrix, 16), frobenius(matrix, 16, deflate=12)
    assert deflated.standard_error < plain.standard_error / 50


def test_diagonal_lies_within_its_errors(exact):
    matrix = exact["mlp"]
    estimate = diagonal(matrix, probes=400, seed=1)
    scores = (estimate.value - matrix.diagonal()) / estimate.standard_error
    assert (scores.abs() < 3).double().mean() > 0.95
    assert 0.8 < scores.std() < 1.25
    assert torch.isnan(diagonal(matrix, probes=1).standard_error).all()


def test_diagonal_concentration_is_unbiased(exact):
    for matrix in (exact["mlp"], random_symmetric(np.linspace(-1, 2, 80))):
        truth = float(matrix.diagonal().square().sum() / matrix.square().sum())
        estimates = [diagonal_concentration(matrix, 16, seed=seed) for seed in range(100)]
        values = np.array([estimate.value for estimate in estimates])
        errors = np.array([estimate.standard_error for estimate in estimates])
        assert abs(values.mean() - truth) < 4 * values.std() / 10
        assert np.mean(np.abs(values - truth) <= 3 * errors) >= 0.95
    assert diagonal_concentration(torch.diag(torch.arange(1.0, 9.0))).value == pytest.approx(1)


def marchenko_pastur_cdf(x, ratio):
    """Distribution of the eigenvalues of XXᵀ/n for d/n = ratio < 1, by integrating the density."""
    low, high = (1 - sqrt(ratio)) ** 2, (1 + sqrt(ratio)) ** 2
    grid = np.linspace(low, high, 20001)
    density = np.sqrt(np.maximum((high - grid) * (grid - low), 0)) / (2 * pi * ratio * grid)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    return np.interp(x, grid, mass)


def test_marchenko_pastur_with_outliers():
    d, n = 500, 2000
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(d, n, generator=generator, dtype=torch.float64)
    spikes = torch.tensor([6.0, 9.0, 14.0, 14.5], dtype=torch.float64)
    directions, _ = torch.linalg.qr(torch.randn(d, 4, generator=generator, dtype=torch.float64))
    matrix = x @ x.T / n + (directions * spikes) @ directions.T
    exact = torch.linalg.eigvalsh(matrix).numpy()
    density = spectral_density(matrix, probes=10, lanczos=60)
    numbers = statistics(density)
    assert numbers.outlier_count == 4
    assert np.abs(np.array(numbers.outliers) - exact[:-5:-1]).max() < 1e-8
    assert numbers.negative_outliers == ()
    assert numbers.negative_fraction == 0
    # The bulk follows the law: the largest distance of the distributions is a few times
    # 1/√(d·probes), plus half a node's weight.
    theta, omega = density.merged()
    bulk = np.cumsum(omega) - omega / 2
    assert np.abs(bulk - marchenko_pastur_cdf(theta, d / n))[theta < 3].max() < 0.025
    # Without the spikes there is no outlier.
    assert statistics(spectral_density(x @ x.T / n, probes=4, lanczos=60)).outliers == ()
    # All d steps: every eigenvalue is resolved, and the bulk still is not made of outliers.
    small = torch.randn(60, 240, generator=generator, dtype=torch.float64)
    complete = spectral_density(small @ small.T / 240, probes=2, lanczos=60)
    assert statistics(complete).outliers == ()


def test_the_unresolved_tail_of_a_spectrum_is_not_made_of_outliers():
    generator = torch.Generator().manual_seed(0)
    values = (2 * torch.randn(1500, generator=generator, dtype=torch.float64)).exp()
    density = spectral_density(torch.diag(values), probes=3, lanczos=14)
    outliers = np.array(statistics(density).outliers)
    theta, omega = density.merged()
    edge = omega @ theta + 3 * sqrt(omega @ theta**2 - (omega @ theta) ** 2)
    beyond = min(int((nodes > edge).sum()) for nodes in density.nodes)
    assert 0 < len(outliers) < beyond
    distances = np.abs(outliers[:, None] - values.numpy()[None, :]).min(axis=1)
    assert (distances < 0.01 * outliers).all()


def bulk_and_tail(seed):
    """A bulk near zero of either sign, as networks have, and a tail on both sides."""
    generator = torch.Generator().manual_seed(seed)
    bulk = 10.0 ** -(seed % 4) * torch.randn(200, generator=generator, dtype=torch.float64)
    tail = 8 * torch.rand(30, generator=generator, dtype=torch.float64) - 2
    return torch.cat([bulk, tail])


@pytest.mark.parametrize("lanczos", [4, 12, 40])
def test_shares_lie_within_their_bounds(lanczos):
    """Against the shares of the same probes after all Lanczos steps, which find all eigenvalues."""
    widths = []
    for seed in range(24):
        matrix = torch.diag(bulk_and_tail(seed))
        theta, omega = spectral_density(matrix, probes=2, lanczos=230, seed=seed).merged()
        density = spectral_density(matrix, probes=2, lanczos=lanczos, seed=seed)
        for value in (-1.5, -0.1, -1e-3, 0, 1e-3, 0.5, 4):
            low, high = density.share_below(value)
            assert low - 1e-3 <= omega[theta < value].sum() <= high + 1e-3, (seed, value)
            widths.append(high - low)
    assert np.mean(widths) < {4: 0.8, 12: 0.6, 40: 0.2}[lanczos]  # they say something


def test_a_share_that_is_resolved_has_no_width():
    density = spectral_density(torch.diag(torch.tensor([-2.0, -1, 1, 2])), probes=3)
    theta, omega = density.merged()
    for value in (-3, -1.5, 0, 3):
        assert density.share_below(value) == pytest.approx([omega[theta < value].sum()] * 2)


def test_the_sign_of_a_narrow_bulk_is_not_known():
    """What a network's Hessian is like: the one node of the bulk lies on either side of zero."""
    found = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        bulk = 1e-3 * torch.randn(500, generator=generator, dtype=torch.float64)
        spikes = torch.tensor([-1.0, 5, 9], dtype=torch.float64)
        density = spectral_density(torch.diag(torch.cat([bulk, spikes])), probes=1, lanczos=4)
        found.append(statistics(density).negative_fraction)
        low, high = density.share_below(0)
        assert low < 0.1
        assert high > 0.9
    assert min(found) < 0.1 < 0.9 < max(found)


def test_statistics_follow_their_definitions():
    """Against sums over known eigenvalues, each a node of weight 1/d."""
    values = np.sort(np.concatenate([np.linspace(-0.5, 1, 37), [8.0, 9.0, -7.0]]))
    size, d = np.abs(values), len(values)
    density = SpectralDensity((values,), (np.full(d, 1 / d),), (np.zeros(d),), d, 1e-16)
    numbers = statistics(density)
    share = size / size.sum()
    share = share[share > 0]
    expected = {
        "lambda_max": 9,
        "lambda_min": -7,
        "trace": values.sum(),
        "frobenius": sqrt((values**2).sum()),
        "anisotropy": d * 9 / size.sum(),
        "effective_rank": np.exp(-(share * np.log(share)).sum()),
        "participation_ratio": size.sum() ** 2 / (size**2).sum(),
        "negative_mass": size[values < 0].sum() / size.sum(),
        "negative_fraction": (values < 0).mean(),
    }
    for name, value in expected.items():
        assert getattr(numbers, name) == pytest.approx(value, rel=1e-12), name
    assert numbers.outliers == (9, 8)
    assert numbers.negative_outliers == (-7,)
    assert numbers.to_dict()["outlier_count"] == 2


def test_smoothed_density_integrates_to_one_and_keeps_the_mean():
    density = spectral_density(random_symmetric(np.linspace(-1, 3, 50)), probes=3, lanczos=20)
    grid, height = density.smoothed()
    assert np.trapezoid(height, grid) == pytest.approx(1, abs=1e-4)
    assert np.trapezoid(height * grid, grid) == pytest.approx(density.moment(1).value, abs=1e-4)
    with pytest.raises(ValueError, match="width must be positive"):
        density.smoothed(width=0)


def test_a_density_survives_its_plain_form():
    density = spectral_density(random_symmetric(np.linspace(-1, 3, 9)), probes=2)
    again = SpectralDensity.from_dict(density.to_dict())
    assert all(np.array_equal(a, b) for a, b in zip(density.nodes, again.nodes, strict=True))
    assert statistics(again) == statistics(density)


def test_seeds_decide_the_result():
    matrix = random_symmetric(np.linspace(-1, 3, 60))
    first, again, other = (spectral_density(matrix, lanczos=8, seed=seed) for seed in (4, 4, 5))
    assert np.array_equal(first.nodes, again.nodes)
    assert not np.array_equal(first.nodes, other.nodes)
    assert trace(matrix, seed=4) == trace(matrix, seed=4) != trace(matrix, seed=5)


def test_the_basis_may_live_elsewhere():
    matrix = random_symmetric(np.linspace(-1, 3, 30))
    assert np.array_equal(
        spectral_density(matrix, basis_device="cpu").nodes, spectral_density(matrix).nodes
    )


def test_layers_are_the_blocks_of_the_hessian(exact):
    operator = operator_of(mlp())
    blocks = {"0": exact["mlp"][:30, :30], "2": exact["mlp"][30:, 30:]}
    tops = layerwise(top_eigenvalues, operator, "*", k=2, tol=1e-12)
    assert list(tops) == ["0", "2"]
    for name, block in blocks.items():
        values = torch.linalg.eigvalsh(block).numpy()
        assert np.abs(tops[name].values - values[:-3:-1]).max() < 1e-8
        for measure in (trace, frobenius, diagonal_concentration):
            ours = layerwise(measure, operator, [name], probes=8)[name]
            assert ours.value == pytest.approx(measure(block, probes=8).value, rel=1e-9)
        nodes = layerwise(spectral_density, operator, name, probes=1, lanczos=10)[name].nodes[0]
        expected = spectral_density(block, probes=1, lanczos=10).nodes[0]
        assert np.abs(nodes - expected).max() < 1e-10
    joined = layerwise(trace, operator, {"all": "*"}, probes=8)["all"]
    assert joined.value == pytest.approx(trace(exact["mlp"], probes=8).value, rel=1e-9)
    with pytest.raises(ValueError, match=r"modules=\['conv\*'\] matches none of \['0', '2'\]"):
        layerwise(trace, operator, "conv*")


class TestDegenerate:
    """Zero Hessian, one parameter, negative definite, k >= d, repeated eigenvalues."""

    def test_zero_hessian(self):
        model = nn.Linear(3, 2).double()

        def linear_loss(output, target):
            return (output * target).mean()

        data = (torch.randn(4, 3).double(), torch.randn(4, 2).double())
        operator = hessian_operator(model, linear_loss, data)
        pairs = top_eigenvalues(operator, 3)
        assert np.array_equal(pairs.values, np.zeros(3))
        density = spectral_density(operator)
        assert all(np.array_equal(nodes, [0.0]) for nodes in density.nodes)
        numbers = statistics(density)
        assert (numbers.lambda_max, numbers.effective_rank, numbers.outliers) == (0, 0, ())
        assert np.isnan(numbers.anisotropy)
        for deflate in (0, 3):
            assert trace(operator, deflate=deflate).value == 0
            assert frobenius(operator, deflate=deflate).value == 0
        assert diagonal_concentration(operator).value == 1
        grid, height = density.smoothed()
        assert np.isfinite(height).all()
        assert len(grid) == len(height)

    def test_one_parameter(self):
        model = nn.Linear(1, 1, bias=False).double()
        data = (torch.full((2, 1), 3.0).double(), torch.zeros(2, 1).double())
        operator = hessian_operator(model, nn.MSELoss(), data)
        assert top_eigenvalues(operator, 5).values == pytest.approx([18])
        assert spectral_density(operator, probes=1).nodes[0] == pytest.approx([18])
        assert trace(operator, 2).value == pytest.approx(18)
        assert trace(operator, 2, deflate=4).value == pytest.approx(18)
        assert statistics(spectral_density(operator)).anisotropy == pytest.approx(1)

    def test_negative_definite(self):
        values = -np.linspace(1, 5, 40)
        matrix = random_symmetric(values)
        numbers = statistics(spectral_density(matrix, lanczos=40))
        assert numbers.lambda_max == pytest.approx(-1)
        assert numbers.negative_mass == pytest.approx(1)
        assert numbers.negative_fraction == pytest.approx(1)
        assert np.allclose(top_eigenvalues(matrix, 2, "SA").values, [values[-2], -5], atol=1e-5)
        assert np.allclose(top_eigenvalues(matrix, 1, "LM").values, [-5], atol=1e-5)

    def test_k_at_least_d(self, exact):
        values = np.sort(torch.linalg.eigvalsh(exact["mlp"]).numpy())[::-1]
        for k in (51, 200):
            pairs = top_eigenvalues(exact["mlp"], k)
            assert np.abs(pairs.values - values).max() < 1e-12
            assert pairs.vectors.shape == (51, 51)

    def test_repeated_eigenvalues_are_all_found(self):
        values = np.array([5.0, 5.0, 5.0, 2.0, 2.0, 0.0, 0.0, -1.0])
        pairs = top_eigenvalues(random_symmetric(values), 8)
        assert np.abs(pairs.values - values).max() < 1e-12
        large = random_symmetric(np.concatenate([np.full(90, 0.0), [3.0, 3.0]]))
        assert np.allclose(top_eigenvalues(large, 2).values, [3, 3])

    @pytest.mark.parametrize(("k", "which"), [(3, "LA"), (12, "LA"), (3, "LM"), (4, "BE")])
    def test_repeated_eigenvalues_are_found_before_the_space_closes(self, k, which):
        """Of a linear layer under the square error: each output repeats all eigenvalues."""
        inputs = torch.randn(90, 40, dtype=torch.float64)
        layer = torch.nn.Linear(40, 8, bias=False).double()
        targets = torch.randn(90, 8, dtype=torch.float64)
        operator = hessian_operator(layer, torch.nn.MSELoss(), (inputs, targets))
        single = np.linalg.eigvalsh((2 / (90 * 8) * inputs.T @ inputs).numpy())
        exact = np.sort(np.repeat(single, 8))[::-1]
        wanted = np.r_[exact[:2], exact[-2:]] if which == "BE" else exact[:k]
        pairs = top_eigenvalues(operator, k, which)
        assert pairs.converged
        assert np.abs(pairs.values - wanted).max() < 2e-6 * exact[0]
        gram = pairs.vectors.T @ pairs.vectors
        assert torch.allclose(gram, torch.eye(k, dtype=torch.float64), atol=1e-10)
        error = operator @ pairs.vectors - pairs.vectors * torch.as_tensor(pairs.values)
        assert np.all(error.norm(dim=0).numpy() <= pairs.residuals + 1e-12)

    def test_wrong_arguments_name_themselves(self):
        matrix = torch.eye(40)
        for call, text in (
            (lambda: top_eigenvalues(matrix, 0), "k must be at least 1, not 0"),
            (lambda: top_eigenvalues(matrix, 1, "XX"), "which must be one of"),
            (lambda: top_eigenvalues(matrix, 5, basis=6), "basis must be at least k \\+ 2 = 7"),
            (lambda: spectral_density(matrix, probes=0), "at least 1, not 0"),
            (lambda: trace(matrix, probes=0), "probes must be at least 1, not 0"),
            (lambda: trace(matrix, deflate=-1), "deflate must not be negative, not -1"),
            (lambda: diagonal_concentration(matrix, 1), "probes must be at least 2, not 1"),
            (lambda: trace(torch.ones(3, 2)), "operator must be square"),
            (lambda: spectral_density(torch.full((3, 3), torch.nan)), "not finite"),
        ):
            with pytest.raises(ValueError, match=text):
                call()

    def test_giving_up_warns(self):
        matrix = random_symmetric(np.linspace(0, 1, 300))
        with pytest.warns(RuntimeWarning, match="did not reach tol"):
            pairs = top_eigenvalues(matrix, 3, tol=1e-14, max_products=12)
        assert not pairs.converged
        assert pairs.products == 12


def test_float32_finds_the_spectrum_to_its_precision():
    problem = mlp()
    values = torch.linalg.eigvalsh(exact_hessian(problem)).numpy()
    operator = hessian_operator(problem.model, CE, problem.batches, dtype=torch.float32)
    pairs = top_eigenvalues(operator, 4)
    assert np.abs(pairs.values - values[:-5:-1]).max() < 1e-6
