"""lpsgd.optax against the torch optimizers, and the habits of optax: jit, injection, masks."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="needs the extra: pip install 'lpsgd[optax]'")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import torch  # noqa: E402

import lpsgd.optax as lp  # noqa: E402
from lpsgd import LPSGD, LPSGDM, CosineP, LinearAlpha, LPMuon, _optax_muon  # noqa: E402
from tests.optimizer_problem import arrays, gradients, largest_error, run, start  # noqa: E402

STEPS = 50
PRECISIONS = {"float32": (torch.float32, 1e-6), "float64": (torch.float64, 1e-12)}


def follow(
    transformation: optax.GradientTransformation,
    params: Any,
    grads: list[Any],
    *,
    before: Callable[[int, Any], Any] = lambda t, state: state,
) -> Any:
    """The parameters after one jitted step for each gradient; the step must compile once."""
    traces = []

    @jax.jit
    def step(params: Any, state: Any, grad: Any) -> Any:
        traces.append(1)
        updates, state = transformation.update(grad, state, params)
        return optax.apply_updates(params, updates), state

    state = transformation.init(params)
    for t, grad in enumerate(grads):
        params, state = step(params, before(t, state), grad)
    assert len(traces) == 1
    assert step._cache_size() == 1
    return params


def jax_problem(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    """The parameters and gradients of the torch tests, as lists of JAX arrays."""
    convert = lambda row: [jnp.asarray(t.detach().numpy()) for t in row]  # noqa: E731
    return convert(start(dtype)), [convert(row) for row in gradients(STEPS, dtype)]


def schedules() -> dict[str, tuple[Any, Any]]:
    """p for torch and for JAX."""
    smooth, alpha = CosineP(6, total_steps=STEPS), LinearAlpha(total_steps=STEPS - 2)
    staircase = CosineP(6, total_epochs=7, steps_per_epoch=7)
    return {
        "p=2": (2.0, 2.0),
        "p=6": (6.0, 6.0),
        "p=inf": (float("inf"), float("inf")),
        "optax cosine": (smooth, optax.cosine_decay_schedule(6.0, STEPS - 1, alpha=2 / 6)),
        "CosineP": (smooth, smooth),
        "CosineP by epoch": (staircase, staircase),
        "LinearAlpha": (alpha, alpha),
    }


@pytest.mark.parametrize("p", schedules())
@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_fifty_steps_equal_torch(precision: str, normalize: Any, p: str) -> None:
    dtype, tolerance = PRECISIONS[precision]
    for_torch, for_jax = schedules()[p]
    settings: Any = {"momentum": 0.9, "weight_decay": 0.1, "normalize": normalize}
    theirs = start(dtype)
    # torch's own operations: the kernel's power has an error of its own, tested where it belongs
    reference = LPSGDM(theirs, lr=0.01, p=for_torch, fused=False, **settings)
    run(reference, theirs, gradients(STEPS, dtype))
    with jax.enable_x64(precision == "float64"):
        ours = follow(lp.lpsgdm(0.01, p=for_jax, **settings), *jax_problem(dtype))
    assert {str(x.dtype) for x in ours} == {precision}
    assert largest_error(theirs, ours) <= tolerance


@pytest.mark.parametrize("precision", PRECISIONS)
def test_lpsgd_with_changing_rate_equals_torch(precision: str) -> None:
    dtype, tolerance = PRECISIONS[precision]
    theirs = start(dtype)
    rate = lambda t: 0.01 * (1 - t / STEPS)  # noqa: E731
    reference = LPSGD(theirs, p=4.0, weight_decay=0.1, fused=False)
    run(reference, theirs, gradients(STEPS, dtype), lr=rate)
    with jax.enable_x64(precision == "float64"):
        # optax.linear_schedule computes in float32 even where float64 is enabled
        falling = lambda count: 0.01 * (1 - count.astype(float) / STEPS)  # noqa: E731
        ours = follow(lp.lpsgd(falling, 4.0, 0.1), *jax_problem(dtype))
    assert largest_error(theirs, ours) <= tolerance


def test_a_schedule_gives_what_it_gives_torch() -> None:
    schedule = CosineP(6, total_epochs=200, steps_per_epoch=391)
    steps = jnp.arange(0, 200 * 391, 17)
    edges = jnp.arange(200) * 391
    traced = jax.jit(jax.vmap(schedule))
    for counts in (steps, edges, edges + 390):
        expected = [schedule(int(count)) for count in counts]
        np.testing.assert_allclose(traced(counts), expected, rtol=1e-6)


def test_injected_hyperparameters_change_without_compiling_again() -> None:
    params, grads = jax_problem(torch.float32)
    ps = [float(p) for p in np.linspace(6, 2, STEPS)]
    rates = [float(r) for r in np.linspace(0.01, 0.001, STEPS)]

    def set_values(t: int, state: Any) -> Any:
        state.hyperparams["p"] = jnp.asarray(ps[t])
        state.hyperparams["learning_rate"] = jnp.asarray(rates[t])
        return state

    injected = optax.inject_hyperparams(lp.lpsgdm)(
        learning_rate=0.01, p=6.0, weight_decay=0.1, normalize="rms"
    )
    ours = follow(injected, params, grads, before=set_values)
    theirs = start(torch.float32)
    optimizer = LPSGDM(theirs, p=lambda t: ps[t], weight_decay=0.1, normalize="rms")
    run(optimizer, theirs, gradients(STEPS, torch.float32), lr=lambda t: rates[t])
    assert largest_error(theirs, ours) <= 1e-6


def test_an_injected_schedule_for_p() -> None:
    params, grads = jax_problem(torch.float32)
    schedule = CosineP(6, total_steps=STEPS)
    plain = follow(lp.lpsgdm(0.01, p=schedule), params, grads)
    injected = optax.inject_hyperparams(lp.lpsgdm)(learning_rate=0.01, p=schedule)
    for a, b in zip(plain, follow(injected, params, grads), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("callable_mask", [False, True])
def test_the_mask_spares_parameters_from_decay(callable_mask: bool) -> None:
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    zero = jax.tree.map(jnp.zeros_like, params)
    matrices = lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)  # noqa: E731
    mask = matrices if callable_mask else matrices(params)
    factory = optax.inject_hyperparams(lp.lpsgdm, static_args=("mask",))
    for make in (lp.lpsgdm, factory):
        ours = follow(make(learning_rate=0.1, weight_decay=0.5, mask=mask), params, [zero])
        np.testing.assert_allclose(ours["w"], 0.95, rtol=1e-6)
        np.testing.assert_array_equal(ours["b"], 1.0)


def test_half_precision_keeps_float32_momentum_and_zero_gradients_stay_finite() -> None:
    transformation = lp.lpsgdm(0.1, normalize="rms")
    params = jnp.ones(4, jnp.bfloat16)
    state = transformation.init(params)
    assert state[0].momentum.dtype == jnp.float32
    ours = follow(transformation, params, [jnp.zeros(4, jnp.bfloat16)] * 3)
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_array_equal(ours.astype(jnp.float32), 1.0)
    low = lp.lpsgdm(0.1, state_dtype=jnp.bfloat16).init(jnp.ones(4))
    assert low[0].momentum.dtype == jnp.bfloat16


def test_half_precision_equals_torch() -> None:
    theirs = start(torch.bfloat16)
    run(LPSGDM(theirs, lr=0.01, p=4.0), theirs, gradients(STEPS, torch.bfloat16))
    convert = lambda row: [  # noqa: E731
        jnp.asarray(t.detach().float().numpy(), jnp.bfloat16) for t in row
    ]
    grads = [convert(row) for row in gradients(STEPS, torch.bfloat16)]
    ours = follow(lp.lpsgdm(0.01, p=4.0), convert(start(torch.bfloat16)), grads)
    for a, b in zip(ours, arrays(theirs), strict=True):
        # a difference of one rounding may be carried to the end
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=2**-7)


def test_complex_and_empty_arrays() -> None:
    z = torch.complex(torch.randn(5), torch.randn(5)).requires_grad_()
    params = [jnp.asarray(z.detach().numpy()), jnp.zeros((0, 3))]
    z.grad = torch.complex(torch.randn(5), torch.randn(5))
    grad = [jnp.asarray(z.grad.numpy()), jnp.zeros((0, 3))]
    ours = follow(lp.lpsgdm(0.1, p=4.0, normalize="rms"), params, [grad])
    LPSGDM([z], lr=0.1, p=4.0, normalize="rms").step()
    np.testing.assert_allclose(ours[0], z.detach().numpy(), rtol=1e-6)


def test_entries_out_of_the_range_of_squares() -> None:
    x = jnp.array([1e-30, 1e30, -1e30])
    for normalize in ("dual", "rms"):
        transformation = lp.scale_by_lp(3.0, normalize=normalize)
        u, _ = transformation.update(x, transformation.init(x))
        assert bool(jnp.isfinite(u).all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p": 1.5}, "p must be a number from 2 to inf, got 1.5"),
        ({"p": None}, "p must be a number from 2 to inf, got None"),
        ({"eps": 0.0}, "eps must be a finite number > 0, got 0.0"),
        ({"momentum": 1.0}, r"momentum must be a number in \[0, 1\), got 1.0"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number >= 0, got -1.0"),
        ({"normalize": "l2"}, "normalize must be one of None, 'dual', 'rms', got 'l2'"),
    ],
)
def test_errors_name_argument_value_and_what_is_allowed(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lp.lpsgdm(0.1, **settings)


@pytest.mark.parametrize("module", [lp, _optax_muon], ids=["optax", "_optax_muon"])
def test_documented_examples_are_true(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_without_jax_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['jax'] = None; import lpsgd.optax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "lpsgd.optax needs the package 'jax': pip install 'lpsgd[optax]'" in done.stderr


MATRICES = ((6, 9), (5,), (), (4, 3, 3, 3), (9, 6))


@pytest.mark.parametrize("additions", [False, True])
@pytest.mark.parametrize("p", [float("inf"), 4.0, "LinearAlpha"])
@pytest.mark.parametrize("exact", [True, False])
def test_lpmuon_equals_torch(exact: bool, p: Any, additions: bool) -> None:
    schedule = LinearAlpha(-0.3, 0.5, total_steps=STEPS) if p == "LinearAlpha" else p
    settings: Any = {
        "weight_decay": 0.1,
        "cautious": additions,
        "normalize_rows": additions,
        "exact": exact,
    }
    params = start(torch.float64, MATRICES)
    grads = gradients(STEPS, torch.float64, MATRICES)
    run(LPMuon(params, lr=0.01, p=schedule, **settings), params, grads)
    convert = lambda row: [jnp.asarray(t.detach().numpy()) for t in row]  # noqa: E731
    with jax.enable_x64(True):
        transformation = lp.lpmuon(0.01, p=schedule, output_axis=0, **settings)
        problem = convert(start(torch.float64, MATRICES)), [*map(convert, grads)]
        found = [np.asarray(x) for x in follow(transformation, *problem)]
    assert largest_error(params, found) < 1e-8


def test_lpmuon_takes_outputs_from_the_last_axis_and_leaves_marked_arrays_to_adamw() -> None:
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(5, 7)))
    first, last = (lp.lpmuon(0.1, output_axis=axis) for axis in (0, -1))
    zeros = jnp.zeros_like(rows)
    by_first, _ = first.update(rows, first.init(zeros), zeros)
    by_last, _ = last.update(rows.T, last.init(zeros.T), zeros.T)
    np.testing.assert_allclose(by_first, by_last.T, rtol=1e-6)
    adamw = lp.lpmuon(0.1, matrices=[False])
    moved, _ = adamw.update([rows], adamw.init([zeros]), [zeros])
    np.testing.assert_allclose(moved[0], -0.1 * jnp.sign(rows), rtol=1e-5)


def test_lpmuon_refuses_wrong_settings() -> None:
    with pytest.raises(ValueError, match="p must be a number from 2 to inf, or below 0"):
        lp.lpmuon(0.1, p=1.5)
    with pytest.raises(ValueError, match="lpmuon needs the parameters"):
        made = lp.lpmuon(0.1)
        made.update([jnp.ones(2)], made.init([jnp.ones(2)]))
