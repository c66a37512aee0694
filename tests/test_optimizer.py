"""Whole trajectories of every path and option against the float64 formulas of the paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lpsgd import LPSGD, LPSGDM, CosineP, LinearAlpha, LinearP
from tests.optimizer_problem import STEPS, arrays, gradients, largest_error, run, start
from tests.oracles import lp

PATHS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "capturable": {"capturable": True},
    "capturable-loop": {"capturable": True, "foreach": False},
    "differentiable": {"differentiable": True},
}
EXPONENTS: dict[str, tuple[Any, Any]] = {
    "paper": (
        CosineP(6, total_epochs=6, steps_per_epoch=10),
        lambda t: lp.paper_p(6, t // 10 + 1, 6),
    ),
    "smooth": (CosineP(9, total_steps=STEPS), lambda t: lp.paper_p(9, t + 1, STEPS)),
    "linear": (LinearP(5, total_steps=STEPS), lambda t: 5 - 3 * t / (STEPS - 1)),
    "alpha": (
        LinearAlpha(total_steps=40),
        lambda t: 1 + 40 / t if 0 < t < 40 else (2 if t else math.inf),
    ),
    "two": (2.0, lambda t: 2.0),
    "six": (6.0, lambda t: 6.0),
    "inf": (math.inf, lambda t: math.inf),
    "callable": (lambda step: 2 + 4 / (1 + step), lambda t: 2 + 4 / (1 + t)),
}


def rate(t: int) -> float:
    return 0.05 / (1 + 0.1 * t)


@pytest.mark.filterwarnings("ignore:step .* past the end")
@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cls", [LPSGD, LPSGDM])
def test_trajectory_equals_the_formula(
    cls: type[LPSGD], path: str, exponent: str, normalize: str | None
) -> None:
    p, oracle_p = EXPONENTS[exponent]
    params, grads = start(), gradients()
    if path == "differentiable":
        params = [x.detach().clone() for x in params]
    before = arrays(params)
    momentum = 0.9 if cls is LPSGDM else 0.0
    optimizer = cls(params, lr=0.05, p=p, weight_decay=0.1, normalize=normalize, **PATHS[path])
    run(optimizer, params, grads, lr=rate)
    expected = lp.trajectory(
        before,
        [arrays(row) for row in grads],
        p=oracle_p,
        lr=rate,
        momentum=momentum,
        weight_decay=0.1,
        normalize=normalize,
    )
    assert largest_error(params, expected) < 1e-12
    assert float(optimizer.param_groups[0]["p"]) == pytest.approx(oracle_p(STEPS - 1), rel=1e-14)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "options", [{"maximize": True}, {"eps": 1e-3}, {"momentum": 0.0}, {"momentum": 0.99}]
)
def test_options_equal_the_formula(path: str, options: dict[str, Any]) -> None:
    params, grads = [x.detach().clone() for x in start()], gradients()
    before = arrays(params)
    run(LPSGDM(params, lr=0.05, p=5.0, weight_decay=0.2, **options, **PATHS[path]), params, grads)
    settings = {"momentum": 0.9, **options}
    expected = lp.trajectory(
        before,
        [arrays(row) for row in grads],
        p=lambda t: 5.0,
        lr=lambda t: 0.05,
        weight_decay=0.2,
        **settings,
    )
    assert largest_error(params, expected) < 1e-12


@pytest.mark.filterwarnings("ignore:step .* past the end")
@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("cls", [LPSGD, LPSGDM])
def test_float32_paths_agree_to_a_few_ulp(
    cls: type[LPSGD], exponent: str, normalize: str | None
) -> None:
    """One step from one state: each path within a few ulp of the float64 formula, in its update.

    8 where the power is pow's; 20 where it is exp(log), whose argument is rounded.
    """
    p, oracle_p = EXPONENTS[exponent]
    grads = gradients(1, torch.float32)
    for path, options in PATHS.items():
        few = 20 if path in ("foreach", "capturable") else 8
        params = [torch.zeros_like(x) for x in grads[0]]  # the update is all that there is
        run(cls(params, lr=1.0, p=p, normalize=normalize, **options), params, grads)
        momentum = 0.9 if cls is LPSGDM else 0.0
        expected = lp.trajectory(
            arrays([torch.zeros_like(x) for x in params]),
            [arrays(row) for row in grads],
            p=oracle_p,
            lr=lambda t: 1.0,
            momentum=momentum,
            normalize=normalize,
        )
        for ours, theirs in zip(arrays(params), expected, strict=True):
            assert np.all(np.abs(ours - theirs) <= few * 2.0**-23 * np.abs(theirs))


def test_groups_have_their_own_settings() -> None:
    params, grads = start(), gradients()
    before = arrays(params)
    own: list[dict[str, Any]] = [
        {"lr": 0.01, "p": 3.0, "momentum": 0.5, "weight_decay": 0.0, "eps": 1e-6},
        {"lr": 0.02, "p": CosineP(4, total_steps=STEPS), "weight_decay": 0.3},
        {"p": math.inf, "normalize": "rms", "maximize": True},
        {"momentum": 0.0, "normalize": "dual"},
    ]
    optimizer = LPSGDM(
        [{"params": [x], **settings} for x, settings in zip(params, own, strict=True)],
        lr=0.05,
        p=6.0,
        weight_decay=0.1,
    )
    run(optimizer, params, grads)
    for i, settings in enumerate(own):
        merged = {"lr": 0.05, "p": 6.0, "momentum": 0.9, "weight_decay": 0.1, **settings}
        p, lr = merged.pop("p"), merged.pop("lr")
        expected = lp.trajectory(
            [before[i]],
            [[arrays(row)[i]] for row in grads],
            p=p if callable(p) else lambda t, p=p: p,
            lr=lambda t, lr=lr: lr,
            **merged,
        )
        assert largest_error([params[i]], expected) < 1e-12
    assert "momentum_buffer" not in optimizer.state[params[3]]


def test_tensor_lr_equals_a_number() -> None:
    grads = gradients()
    results = []
    for lr in (
        0.05,
        torch.tensor(0.05, dtype=torch.float64),
        torch.tensor([0.05], dtype=torch.float64),
    ):
        for options in PATHS.values():
            params = [x.detach().clone() for x in start()]
            run(LPSGDM(params, lr=lr, p=4.0, weight_decay=0.1, **options), params, grads)
            results.append(params)
    for other in results[1:]:
        assert largest_error(other, results[0]) < 1e-12


def test_tensor_p_equals_a_number_and_two_is_exact() -> None:
    for value in (2.0, 3.5, math.inf):
        results = []
        for p in (value, torch.tensor(value, dtype=torch.float64)):
            for options in PATHS.values():
                params = [x.detach().clone() for x in start()]
                run(LPSGDM(params, lr=0.05, p=p, **options), params, gradients())
                results.append(params)
        for other in results[1:]:
            assert largest_error(other, results[0]) < 1e-12


def test_p_two_takes_no_power(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_power(*_: Any, **__: Any) -> None:
        raise AssertionError("a power was taken at p = 2")

    for name in ("_foreach_pow_", "_foreach_pow", "pow"):
        monkeypatch.setattr(torch, name, no_power)
    monkeypatch.setattr(torch.Tensor, "__pow__", no_power)
    monkeypatch.setattr(torch.Tensor, "pow", no_power)
    for foreach in (False, True):
        params = start()
        run(LPSGDM(params, lr=0.05, p=2.0, foreach=foreach), params, gradients(3))
        assert all(torch.isfinite(x).all() for x in params)


@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("p", [2.0, 6.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_zero_gradient_moves_nothing_but_decay(
    dtype: torch.dtype, p: float, path: str, normalize: str | None
) -> None:
    params = [x.detach().clone() for x in start(dtype)]
    before = [x.clone() for x in params]
    zero = [[torch.zeros_like(x) for x in params]] * 3
    run(LPSGDM(params, lr=0.5, p=p, normalize=normalize, **PATHS[path]), params, zero)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    run(
        LPSGDM(params, lr=0.5, p=p, weight_decay=0.5, normalize=normalize, **PATHS[path]),
        params,
        zero,
    )
    for a, b in zip(params, before, strict=True):
        # three times (1 - 0.25), each rounded once in the parameter's dtype
        expected = b.clone()
        for _ in range(3):
            expected = (expected.double() * 0.75).to(dtype)
        assert torch.equal(a, expected)


@pytest.mark.parametrize("path", PATHS)
def test_gradients_are_never_modified(path: str) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        for normalize in (None, "dual", "rms"):
            for cls in (LPSGD, LPSGDM):
                params, row = [x.detach().clone() for x in start(dtype)], gradients(1, dtype)[0]
                optimizer = cls(params, p=3.0, maximize=True, normalize=normalize, **PATHS[path])
                for param, g in zip(params, row, strict=True):
                    param.grad = g
                copies = [g.clone() for g in row]
                optimizer.step()
                assert all(param.grad is g for param, g in zip(params, row, strict=True))
                assert all(torch.equal(a, b) for a, b in zip(row, copies, strict=True))


def test_none_empty_and_meta_parameters() -> None:
    for foreach in (False, True):
        for normalize in (None, "dual", "rms"):
            a, b = start()[:2]
            empty = torch.zeros((0, 3), dtype=torch.float64, requires_grad=True)
            meta = torch.zeros((4, 2), device="meta", requires_grad=True)
            optimizer = LPSGDM([a, b, empty, meta], p=4.0, foreach=foreach, normalize=normalize)
            a.grad, empty.grad = torch.ones_like(a), torch.zeros_like(empty)
            meta.grad = torch.zeros_like(meta)
            before = b.detach().clone()
            optimizer.step()
            optimizer.step()
            assert torch.equal(b, before)
            assert b not in optimizer.state
            assert optimizer.state[meta]["momentum_buffer"].device.type == "meta"
            assert optimizer.state[empty]["momentum_buffer"].shape == (0, 3)
            b.grad = torch.ones_like(b)  # joins late, at the optimizer's count
            optimizer.step()
            assert optimizer.state[b]["step"] is optimizer.state[a]["step"]
            assert int(optimizer.state[b]["step"]) == 3


def test_without_any_gradient_nothing_happens() -> None:
    params = start()
    optimizer = LPSGDM(params, p=CosineP(6, total_steps=10))
    optimizer.step()
    assert not optimizer.state
    assert optimizer.param_groups[0]["p"] == 6.0


def test_closure_is_called_once_with_gradients() -> None:
    (x,) = start()[:1]
    optimizer = LPSGDM([x], lr=0.1)
    calls = []

    def closure() -> float:
        optimizer.zero_grad()
        assert torch.is_grad_enabled()
        loss = x.square().sum()
        loss.backward()
        calls.append(float(loss.detach()))
        return calls[-1]

    assert optimizer.step(closure) == calls[0]
    assert len(calls) == 1
    assert optimizer.step(closure) < calls[0]


def test_hooks_run() -> None:
    params, seen = start(), []
    optimizer = LPSGDM(params)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    run(optimizer, params, gradients(1))
    assert seen == ["before", "after"]


def test_complex_parameters_are_pairs_of_reals() -> None:
    for dtype in (torch.complex128, torch.complex64):
        for normalize in (None, "dual", "rms"):
            for options in ({"foreach": False}, {"foreach": True}, {"state_dtype": torch.float64}):
                z = torch.randn(4, 3, dtype=dtype, requires_grad=True)
                w = torch.view_as_real(z.detach()).clone().requires_grad_()
                one = LPSGDM([z], lr=0.1, p=5.0, weight_decay=0.1, normalize=normalize, **options)
                two = LPSGDM([w], lr=0.1, p=5.0, weight_decay=0.1, normalize=normalize, **options)
                for _ in range(10):
                    g = torch.randn(4, 3, dtype=dtype)
                    z.grad, w.grad = g.conj(), torch.view_as_real(g.conj().resolve_conj()).clone()
                    one.step()
                    two.step()
                assert torch.equal(torch.view_as_real(z.detach()), w.detach())


def test_group_added_in_training_starts_at_the_current_count() -> None:
    schedule = CosineP(6, total_steps=20)
    a, b = start()[:2]
    optimizer = LPSGDM([a], p=schedule)
    run(optimizer, [a], [[torch.ones_like(a)]] * 7)
    optimizer.add_param_group({"params": [b], "lr": 0.5})
    assert optimizer.param_groups[1]["p"] == schedule(7)
    run(optimizer, [a, b], [[torch.ones_like(a), torch.ones_like(b)]])
    assert [int(optimizer.state[x]["step"]) for x in (a, b)] == [8, 8]
    assert optimizer.param_groups[0]["p"] == optimizer.param_groups[1]["p"] == schedule(7)
    assert optimizer.state[a]["step"] is not optimizer.state[b]["step"]


def test_a_group_that_rests_keeps_the_optimizers_time() -> None:
    a, b = start()[:2]
    optimizer = LPSGDM([{"params": [a]}, {"params": [b]}], p=CosineP(6, total_steps=20))
    run(optimizer, [a, b], [[torch.ones_like(a), torch.ones_like(b)]])
    b.grad = None
    for _ in range(5):
        a.grad = torch.ones_like(a)
        optimizer.step()
    assert int(optimizer.state[b]["step"]) == 6


def test_schedule_writes_p_and_can_be_taken_over() -> None:
    params = start()
    schedule = CosineP(6, total_steps=10)
    optimizer = LPSGDM(params, p=schedule)
    group = optimizer.param_groups[0]
    assert group["p_schedule"] is schedule
    assert group["p"] == 6.0
    group["p"] = 3.0  # a schedule overwrites what is set by hand
    run(optimizer, params, gradients(2))
    assert group["p"] == schedule(1)
    group["p_schedule"], group["p"] = None, 3.0
    run(optimizer, params, gradients(1))
    assert group["p"] == 3.0


def test_gradscaler_skips_do_not_count() -> None:
    (x,) = start(torch.float32)[:1]
    optimizer = LPSGDM([x], p=CosineP(6, total_steps=10))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for value in (1.0, math.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((x * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert int(optimizer.state[x]["step"]) == 2
    assert torch.isfinite(x).all()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_step_is_differentiable() -> None:
    """The derivative of the parameters after two steps, in lr, p and the start, by gradcheck."""

    def two_steps(theta: torch.Tensor, lr: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        param = theta.clone()
        optimizer = LPSGDM(
            [param], lr=lr, p=p, weight_decay=0.1, normalize="rms", differentiable=True
        )
        for _ in range(2):
            (grad,) = torch.autograd.grad((param.clone() ** 4).sum(), param, create_graph=True)
            param.grad = grad
            optimizer.step()
        return param

    theta = torch.tensor([0.7, -1.2, 0.4], dtype=torch.float64, requires_grad=True)
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    p = torch.tensor(3.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(two_steps, (theta, lr, p))


@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
def test_derivatives_of_a_zero_gradient_are_finite(normalize: str | None) -> None:
    """Layers below one that starts at zero have no gradient at first."""
    theta = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    param = theta.clone()
    optimizer = LPSGDM([param], lr=lr, p=4.0, normalize=normalize, differentiable=True)
    param.grad = theta * 0
    optimizer.step()
    for derivative in torch.autograd.grad(param.sum(), [theta, lr]):
        assert torch.isfinite(derivative).all()


def test_a_step_without_gradients_does_not_count() -> None:
    params = start()
    optimizer = LPSGDM(params, p=CosineP(6, total_steps=10))
    run(optimizer, params, gradients(2))
    optimizer.zero_grad()
    optimizer.step()
    assert int(optimizer.state[params[0]]["step"]) == 2
