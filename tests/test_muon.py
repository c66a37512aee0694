"""LPMuon against singular value decompositions in float64, AdamW and torch's own Muon."""

from __future__ import annotations

import copy
import io
import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lpsgd import CosineP, LinearAlpha, LPMuon, param_groups
from lpsgd._schatten import by_eigenvalues, by_products, chain_weights, lp_matrix_direction
from tests.optimizer_problem import arrays, gradients, largest_error, run, start
from tests.oracles import muon as oracle
from tests.torch_versions import needs_compiled_step

SHAPES = ((6, 9), (5,), (), (4, 3, 3, 3), (9, 6), (1, 7), (6, 9))
STEPS = 30
ALPHAS: dict[str, tuple[Any, Any]] = {
    "inf": (math.inf, lambda t: 0.0),
    "five": (5.0, lambda t: 0.25),
    "two": (2.0, lambda t: 1.0),
    "past": (-1.0, lambda t: -0.5),
    "cosine": (
        CosineP(6, total_steps=STEPS),
        lambda t: 1 / (1 + 2 * (1 + math.cos(math.pi * t / (STEPS - 1)))),
    ),
    "through": (
        LinearAlpha(-0.3, 0.3, total_steps=STEPS),
        lambda t: -0.3 + 0.6 * t / STEPS,
    ),
}
ADDITIONS = [
    {"cautious": cautious, "normalize_rows": rows}
    for cautious, rows in itertools.product((False, True), repeat=2)
]


def rate(t: int) -> float:
    return 0.05 / (1 + 0.1 * t)


@pytest.mark.parametrize("additions", ADDITIONS, ids=str)
@pytest.mark.parametrize("exponent", ALPHAS)
@pytest.mark.parametrize(
    "path", [{"foreach": False}, {"foreach": True}, {"capturable": True}], ids=str
)
def test_trajectory_equals_the_formula(
    path: dict[str, Any], exponent: str, additions: dict[str, bool]
) -> None:
    p, alpha = ALPHAS[exponent]
    params, grads = start(shapes=SHAPES), gradients(STEPS, shapes=SHAPES)
    before = arrays(params)
    optimizer = LPMuon(params, lr=0.05, p=p, weight_decay=0.1, **additions, **path)
    run(optimizer, params, grads, lr=rate)
    expected = oracle.trajectory(
        before, [arrays(row) for row in grads], lr=rate, alpha=alpha, weight_decay=0.1, **additions
    )
    assert largest_error(params, expected) < 1e-9


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_nesterov_and_maximize(nesterov: bool, maximize: bool) -> None:
    params, grads = start(shapes=SHAPES), gradients(STEPS, shapes=SHAPES)
    before = arrays(params)
    optimizer = LPMuon(params, lr=0.05, momentum=0.8, nesterov=nesterov, maximize=maximize)
    run(optimizer, params, grads, lr=rate)
    sign = -1 if maximize else 1
    expected = oracle.trajectory(
        before,
        [[sign * g for g in arrays(row)] for row in grads],
        lr=rate,
        alpha=lambda t: 0.0,
        momentum=0.8,
        nesterov=nesterov,
        cautious=True,
        normalize_rows=True,
    )
    assert largest_error(params, expected) < 1e-9


def test_vectors_and_marked_groups_follow_torchs_adamw() -> None:
    params, grads = start(shapes=SHAPES), gradients(STEPS, shapes=SHAPES)
    others = [p.detach().clone().requires_grad_() for p in params]
    settings: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1}
    ours = LPMuon([{"params": params, "use_muon": False}], **settings)
    theirs = torch.optim.AdamW(others, betas=(0.9, 0.95), **settings)
    run(ours, params, grads, lr=rate)
    run(theirs, others, grads, lr=rate)
    assert largest_error(params, arrays(others)) < 1e-12


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_at_infinity_it_is_torchs_muon() -> None:
    """Their five Newton-Schulz steps in bfloat16 are coarse: singular values of 0.7 to 1.2."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(40, 60, generator=generator)
    ours, theirs = (w.clone().requires_grad_() for _ in range(2))
    g = torch.randn(40, 60, generator=generator)
    a = LPMuon([ours], lr=0.1, cautious=False, normalize_rows=False)
    b = torch.optim.Muon([theirs], lr=0.1, weight_decay=0, adjust_lr_fn="match_rms_adamw")
    for param, optimizer in ((ours, a), (theirs, b)):
        param.grad = g.clone()
        optimizer.step()
    step, other = w - ours.detach(), w - theirs.detach()
    cosine = (step * other).sum() / (step.norm() * other.norm())
    assert cosine > 0.98
    assert 0.7 < other.norm() / step.norm() < 1.2


def with_spectrum(values: Tensor, rows: int, columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    count = len(values)
    u, v = (
        torch.linalg.qr(torch.randn(n, count, generator=generator, dtype=torch.float64))[0]
        for n in (rows, columns)
    )
    return (u * values) @ v.T


SPECTRA = {
    "flat": torch.ones(24, dtype=torch.float64),
    "repeated": torch.tensor([1.0] * 8 + [0.1] * 16, dtype=torch.float64),
    "rank 1": torch.tensor([1.0] + [0.0] * 23, dtype=torch.float64),
    "condition 1e3": torch.logspace(0, -3, 24, dtype=torch.float64),
    "condition 1e6": torch.logspace(0, -6, 24, dtype=torch.float64),
    "condition 1e12": torch.logspace(0, -12, 24, dtype=torch.float64),
}


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("shape", [(24, 24), (24, 70), (70, 24)])
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("alpha", [-0.5, -0.15, 0.0, 0.2, 0.5, 1.0])
def test_the_power_of_any_spectrum(
    alpha: float, spectrum: str, shape: tuple[int, int], size: float
) -> None:
    x = with_spectrum(SPECTRA[spectrum], *shape) * size
    expected = torch.from_numpy(oracle.direction(x.numpy(), alpha))

    def error(u: Tensor) -> float:
        return float((u.double() - expected).norm() / expected.norm())

    assert error(lp_matrix_direction(x, alpha)) < 1e-9
    single = x.to(torch.float32)
    # what docs/lpmuon.md promises
    assert error(lp_matrix_direction(single, alpha, by_eigenvalues)) < (
        1e-3 if alpha >= 0 else 3e-3
    )
    # the promise of the products: a few percent, more where the power is far past infinity
    most = 0.07 if alpha >= 0 else 0.12 if alpha > -0.3 else 0.6
    assert error(lp_matrix_direction(single, alpha, by_products)) < most


def test_dead_units_and_low_rank() -> None:
    """Of singular Gram matrices LAPACK does not always find the eigenvalues; the step needs them.

    Rows are dead, or so small that their squares are denormal numbers; the rank is 4.
    """
    draw = torch.Generator().manual_seed(0)
    for number in range(100):
        alive = torch.rand(64, 1, generator=draw) < 0.4
        faint = 10.0 ** (-30 * torch.rand(64, 1, generator=draw)) if number % 2 else 0.0
        x = torch.randn(64, 4, generator=draw).repeat(1, 32) * torch.where(alive, 1.0, faint)
        expected = torch.from_numpy(oracle.direction(x.double().numpy(), 0.0))
        u = lp_matrix_direction(x, 0.0, by_eigenvalues)
        assert float((u.double() - expected).norm() / expected.norm()) < 1e-3


def test_noise_is_not_lifted_to_the_size_of_the_signal() -> None:
    """Of rank 3 with rounding noise at 1e-7, the other directions stay small at p = inf."""
    values = torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)
    x = with_spectrum(values, 50, 80).to(torch.float32)
    noisy = x + 1e-7 * torch.randn(50, 80, generator=torch.Generator().manual_seed(0))
    for power in (by_eigenvalues, by_products):
        s = torch.linalg.svdvals(lp_matrix_direction(noisy, 0.0, power) / (0.2 * 80**0.5))
        assert torch.all(s[:3] > 0.9)
        assert torch.all(s[3:] < 1e-2)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.3, 0.6, 0.9])
def test_the_products_reach_the_accuracy_that_is_stated(alpha: float) -> None:
    s = torch.logspace(math.log10(2**-12), 0, 3000, dtype=torch.float64)
    gram = torch.diag_embed(s.square().unsqueeze(-1))  # matrices of one entry
    weight = by_products(gram, alpha).flatten()
    exact = (s.square() + 2.0**-16) ** ((alpha - 1) / 2)
    relative = weight / exact - 1
    assert relative.square().mean().sqrt() < 0.02
    assert relative.abs().max() < 0.07


def test_weights_change_smoothly_with_alpha() -> None:
    device = torch.device("cpu")
    weights = torch.stack([chain_weights(a / 100, device) for a in range(-30, 101)])
    assert weights.diff(dim=0).abs().max() < 0.2


def test_zero_gradients_move_nothing_but_by_decay() -> None:
    params = start(shapes=SHAPES)
    before = [p.detach().clone() for p in params]
    optimizer = LPMuon(params, lr=0.1, weight_decay=0.5)
    run(optimizer, params, [[torch.zeros_like(p) for p in params]] * 3)
    for param, old in zip(params, before, strict=True):
        torch.testing.assert_close(param.detach(), old * 0.95**3)


def test_empty_parameters_are_left_alone() -> None:
    empty = torch.zeros(0, 4, requires_grad=True)
    empty.grad = torch.zeros(0, 4)
    other = torch.zeros(2, 2, requires_grad=True)
    other.grad = torch.eye(2)
    LPMuon([empty, other], lr=0.1).step()
    assert other.abs().sum() > 0


def test_a_gradient_that_is_nan_gives_nan_and_no_error() -> None:
    w = torch.ones(3, 4, requires_grad=True)
    w.grad = torch.full((3, 4), torch.nan)
    LPMuon([w]).step()
    assert w.isnan().all()


@pytest.mark.parametrize("exact", [True, False])
def test_half_precision_keeps_its_state_in_float32(exact: bool) -> None:
    params = start(torch.bfloat16, shapes=SHAPES)
    wide = [p.detach().float().requires_grad_() for p in params]
    grads = gradients(5, torch.bfloat16, shapes=SHAPES)
    optimizer = LPMuon(params, lr=1e-3, exact=exact)
    other = LPMuon(wide, lr=1e-3, exact=exact)
    run(optimizer, params, grads)
    run(other, wide, [[g.float() for g in row] for row in grads])
    for param, reference in zip(params, wide, strict=True):
        state = optimizer.state[param]
        assert state["momentum_buffer"].dtype == torch.float32
        torch.testing.assert_close(
            state["momentum_buffer"], other.state[reference]["momentum_buffer"]
        )
        torch.testing.assert_close(param.detach().float(), reference.detach(), rtol=2e-2, atol=2e-2)


def test_resuming_is_exact() -> None:
    grads = gradients(STEPS, torch.float32, shapes=SHAPES)
    p = LinearAlpha(total_steps=STEPS)
    params = start(torch.float32, shapes=SHAPES)
    optimizer = LPMuon(params, lr=0.05, p=p)
    run(optimizer, params, grads[:11])
    buffer = io.BytesIO()
    torch.save({"params": params, "state": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    run(optimizer, params, grads[11:])
    again = [q.detach().clone().requires_grad_() for q in saved["params"]]
    resumed = LPMuon(again, lr=0.05, p=p)
    resumed.load_state_dict(saved["state"])
    run(resumed, again, grads[11:])
    assert all(torch.equal(a, b) for a, b in zip(params, again, strict=True))
    assert copy.deepcopy(resumed).state_dict().keys() == resumed.state_dict().keys()


def test_a_tensor_rate_and_a_tensor_p() -> None:
    grads = gradients(10, shapes=SHAPES)
    plain, tensors = start(shapes=SHAPES), start(shapes=SHAPES)
    run(LPMuon(plain, lr=0.05, p=4.0), plain, grads)
    optimizer = LPMuon(tensors, lr=torch.tensor(0.05), p=torch.tensor(4.0))
    run(optimizer, tensors, grads)
    assert largest_error(tensors, arrays(plain)) < 1e-7  # 0.05 in float32


def test_alpha_is_another_way_to_say_p() -> None:
    w = torch.zeros(2, 2, requires_grad=True)
    assert LPMuon([w], alpha=0.25).param_groups[0]["p"] == 5.0
    assert LPMuon([w], alpha=0).param_groups[0]["p"] == math.inf
    assert LPMuon([w], alpha=-0.5).param_groups[0]["p"] == -1.0
    with pytest.raises(ValueError, match="alpha=0.5 and p=4 say the same thing twice"):
        LPMuon([w], alpha=0.5, p=4)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"p": 1.5}, "p must be a number from 2 to inf, or below 0"),
        ({"p": float("nan")}, "p must be"),
        ({"p": -math.inf}, "p must be"),
        ({"alpha": -1}, "alpha must be a number above -1 and at most 1, got -1"),
        ({"alpha": 2}, "alpha must be"),
        ({"momentum": 1.0}, r"momentum must be a number in \[0, 1\), got 1.0"),
        ({"lr": -1}, "lr must be"),
        ({"betas": (0.9, 1)}, "betas must be a pair"),
        ({"eps": 0}, "eps must be"),
        ({"cautious": 1}, "cautious must be True or False"),
        ({"exact": "yes"}, "exact must be True, False or None"),
        ({"differentiable": True}, "LPMuon cannot be differentiable"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LPMuon([torch.zeros(2, 2, requires_grad=True)], **settings)


def test_a_schedule_that_leaves_the_range_is_named() -> None:
    w = torch.zeros(2, 2, requires_grad=True)
    with pytest.raises(ValueError, match="gave p=1.0 at step 0; p must be a number from 2 to inf"):
        LPMuon([w], p=lambda step: 1.0)


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="does not take complex parameters"):
        LPMuon([torch.zeros(2, 2, dtype=torch.complex64, requires_grad=True)])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.inner = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.table.weight


def test_param_groups_keep_embeddings_and_head_apart() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5), nn.Linear(5, 2))
    names = {
        (group["use_muon"], group["weight_decay"]): group["param_names"]
        for group in param_groups(model, 0.1, muon=True)
    }
    assert names[True, 0.1] == ["0.weight", "2.weight"]
    assert names[False, 0.1] == ["3.weight"]
    assert set(names[False, 0.0]) == {"0.bias", "1.weight", "1.bias", "2.bias", "3.bias"}
    tied = param_groups(Tied(), 0.1, muon=True)
    assert [group["param_names"] for group in tied if group["use_muon"]] == [["inner.weight"]]
    assert "use_muon" not in param_groups(model, 0.1)[0]


@needs_compiled_step
@pytest.mark.parametrize("exact", [True, False])
def test_compiled_it_takes_the_same_steps(exact: bool) -> None:
    shapes = ((6, 9), (5,), (4, 3, 3, 3))
    grads = gradients(4, torch.float32, shapes=shapes)
    eager, compiled = (start(torch.float32, shapes=shapes) for _ in range(2))
    p = LinearAlpha(total_steps=8)
    run(LPMuon(eager, lr=0.05, p=p, exact=exact), eager, grads)
    optimizer = LPMuon(compiled, lr=0.05, p=p, exact=exact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(optimizer, compiled, grads, step=torch.compile(optimizer.step, backend="aot_eager"))
    assert largest_error(compiled, arrays(eager)) < 1e-4


def test_it_trains_a_convolution() -> None:
    """All that autograd gives it, in channels_last memory too."""
    torch.manual_seed(0)
    # in float64, because a batch norm leaves the gradients small where singular values are taken
    layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 3)
    model = nn.Sequential(*layers).double()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plain = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    x, y = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    for net in (model, plain):
        optimizer = LPMuon(net.parameters(), lr=0.02)
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert np.allclose(a.detach().numpy(), b.detach().numpy(), atol=1e-9)
