"""Half precision, extreme gradients, mixed groups, and how much memory a step takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from lpsgd import LPSGD, LPSGDM, CosineP
from lpsgd._descent import _alike
from lpsgd.geometry import Normalize
from tests.optimizer_problem import SHAPES, STEPS, arrays, gradients, largest_error, run, start
from tests.oracles import lp

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("cls", [LPSGD, LPSGDM])
def test_half_precision_is_computed_in_float32(
    cls: type[LPSGD], dtype: torch.dtype, foreach: bool, normalize: str | None
) -> None:
    """Each step is the float64 formula on what the tensors hold, rounded once."""
    params, grads = start(dtype), gradients(STEPS, dtype)
    optimizer = cls(params, lr=0.05, p=4.0, weight_decay=0.1, foreach=foreach, normalize=normalize)
    m = [np.zeros(x.shape) for x in params]
    beta = 0.9 if cls is LPSGDM else 0.0
    for row in grads:
        before = arrays(params)
        run(optimizer, params, [row])
        for i, g in enumerate(arrays(row)):
            m[i] = beta * m[i] + (1 - beta) * g
            exact = before[i] * (1 - 0.05 * 0.1) - 0.05 * lp.direction(m[i], 4.0, 1e-8, normalize)
            ulp = torch.finfo(dtype).eps * np.maximum(np.abs(exact), torch.finfo(dtype).tiny)
            assert np.all(np.abs(params[i].detach().double().numpy() - exact) <= 0.51 * ulp + 1e-6)
    if cls is LPSGDM:
        for x, expected in zip(params, m, strict=True):
            buffer = optimizer.state[x]["momentum_buffer"]
            assert buffer.dtype == torch.float32
            assert np.allclose(buffer.numpy(), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("foreach", [False, True])
def test_half_precision_zero_gradient_is_no_nan(dtype: torch.dtype, foreach: bool) -> None:
    assert torch.tensor(1e-8, dtype=torch.float16) == 0  # why float16 needs the wider arithmetic
    params = start(dtype)
    run(
        LPSGDM(params, p=math.inf, foreach=foreach), params, [[torch.zeros_like(x) for x in params]]
    )
    assert all(torch.isfinite(x).all() for x in params)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_state_dtype_is_kept(state_dtype: torch.dtype, foreach: bool) -> None:
    params, grads = start(torch.float32), gradients(10, torch.float32)
    exact = start(torch.float32)
    optimizer = LPSGDM(params, lr=0.01, p=3.0, state_dtype=state_dtype, foreach=foreach)
    run(optimizer, params, grads)
    run(LPSGDM(exact, lr=0.01, p=3.0), exact, grads)
    assert all(optimizer.state[x]["momentum_buffer"].dtype == state_dtype for x in params)
    assert largest_error(params, exact) < (0.05 if state_dtype.itemsize == 2 else 1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1.0, 1e15, 1e30])
@pytest.mark.parametrize("normalize", ["dual", "rms"])
@pytest.mark.parametrize("foreach", [False, True])
def test_extreme_gradients_in_float32(foreach: bool, normalize: str, scale: float) -> None:
    g = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * scale
    for p in (2.0, 3.0, 6.0, math.inf):
        x = torch.zeros(200)
        run(
            LPSGD([x], lr=1.0, p=p, eps=1e-8, normalize=normalize, foreach=foreach),
            [x],
            [[g.float()]],
        )
        exact = -lp.direction(g.float().double().numpy(), p, 1e-8, normalize)
        # atol: one denormal, because with eps above g the dual step itself is that small
        assert np.allclose(x.double().numpy(), exact, rtol=2e-5, atol=3e-45)


@pytest.mark.parametrize("p", [3.0, 50.0, math.inf])
@pytest.mark.parametrize("foreach", [False, True, None])
def test_dual_of_large_gradients_with_zeros(foreach: bool | None, p: float) -> None:
    g = torch.randn(200, generator=torch.Generator().manual_seed(0)) * 1e30
    g[::7] = 0
    x = torch.zeros(200)
    run(LPSGD([x], lr=1.0, p=p, normalize="dual", foreach=foreach), [x], [[g]])
    exact = -lp.direction(g.double().numpy(), p, 1e-8, "dual")
    assert np.allclose(x.double().numpy(), exact, rtol=3e-5)


@pytest.mark.parametrize("eps", [1e-50, 1e-40])
@pytest.mark.parametrize("foreach", [False, True, None])
def test_an_eps_below_the_dtype_is_no_zero(foreach: bool | None, eps: float) -> None:
    for p in (3.0, math.inf):
        x = torch.zeros(4)
        g = torch.tensor([0.0, 1.0, -2.0, 0.0])
        run(LPSGD([x], lr=1.0, p=p, eps=eps, foreach=foreach), [x], [[g]])
        assert np.allclose(
            -x.double().numpy(), lp.direction(g.double().numpy(), p, 1e-300), rtol=1e-5
        )


def test_a_wide_state_is_averaged_in_its_own_precision() -> None:
    x = torch.zeros(4, requires_grad=True)
    for foreach in (False, True):
        optimizer = LPSGDM([x], state_dtype=torch.float64, foreach=foreach)
        m = np.zeros(4)
        for row in gradients(200, torch.float32, [(4,)]):
            run(optimizer, [x], [row])
            m = 0.9 * m + 0.1 * row[0].double().numpy()
        assert np.allclose(optimizer.state[x]["momentum_buffer"].numpy(), m, rtol=1e-13)


@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    p=st.one_of(st.floats(2, 30), st.just(math.inf)),
    eps=st.floats(1e-10, 1.0),
    normalize=st.sampled_from([None, "dual", "rms"]),
    foreach=st.booleans(),
    momentum=st.sampled_from([0.0, 0.5, 0.95]),
    maximize=st.booleans(),
)
def test_any_shape_dtype_p_and_eps(
    shapes: list[tuple[int, ...]],
    dtype: torch.dtype,
    p: float,
    eps: float,
    normalize: str | None,
    foreach: bool,
    momentum: float,
    maximize: bool,
) -> None:
    params, grads = start(dtype, shapes), gradients(4, dtype, shapes)
    before = arrays(params)
    optimizer = LPSGDM(
        params,
        lr=0.01,
        momentum=momentum,
        p=p,
        eps=eps,
        weight_decay=0.1,
        normalize=normalize,
        foreach=foreach,
        maximize=maximize,
    )
    run(optimizer, params, grads)
    full = [i for i, x in enumerate(params) if x.numel()]
    expected = lp.trajectory(
        [before[i] for i in full],
        [[arrays(row)[i] for i in full] for row in grads],
        p=lambda t: p,
        lr=lambda t: 0.01,
        momentum=momentum,
        weight_decay=0.1,
        eps=eps,
        normalize=normalize,
        maximize=maximize,
    )
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 4 * torch.finfo(dtype).eps)
    assert largest_error([params[i] for i in full], expected) < tolerance


@pytest.mark.parametrize("foreach", [False, True])
def test_mixed_dtypes_and_devices_decay_once(foreach: bool) -> None:
    dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float32]
    params = [torch.full((3,), 2.0, dtype=d).requires_grad_() for d in dtypes]
    params.append(torch.zeros(3, device="meta", requires_grad=True))
    for x in params:
        x.grad = torch.zeros_like(x)
    LPSGDM(params, lr=0.5, weight_decay=0.5, p=4.0, foreach=foreach).step()
    for x in params[:-1]:
        assert x.tolist() == [1.5] * 3


def peak_temporary_bytes(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> int:
    """The most memory that one step holds beyond what it started with, every allocation counted."""
    for x in params:
        x.grad = torch.randn_like(x)
    optimizer.step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        optimizer.step()
    held = most = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert held <= 0, "something survives the step"
    return most


@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cls", [LPSGD, LPSGDM])
@pytest.mark.filterwarnings("ignore::UserWarning:torch.profiler")
def test_foreach_holds_one_temporary(
    cls: type[LPSGD], dtype: torch.dtype, normalize: str | None
) -> None:
    shapes = [(1000, 1000), (300, 1000), (1000,), ()]
    params = [torch.randn(s).to(dtype).requires_grad_() for s in shapes]
    size = sum(x.numel() for x in params) * max(4, dtype.itemsize)
    optimizer = cls(params, p=5.0, weight_decay=0.1, normalize=normalize, foreach=True)
    peak = peak_temporary_bytes(optimizer, params)
    if normalize is None:  # part by part, in the cache
        part = (1 << 19) * max(4, dtype.itemsize)
        assert part // 2 <= peak <= 1.5 * part, f"{peak} bytes"
        return
    assert peak <= size + 1_000_000, f"{peak} bytes for parameters of {size}"
    assert peak >= size // 2, "the measurement sees nothing"


@pytest.mark.parametrize("cls", [LPSGD, LPSGDM])
@pytest.mark.filterwarnings("ignore::UserWarning:torch.profiler")
def test_the_temporary_is_one_for_other_layouts_too(cls: type[LPSGD]) -> None:
    kernel = torch.randn(300, 400, 3, 3).to(torch.bfloat16, memory_format=torch.channels_last)
    params = [kernel.requires_grad_(), torch.randn(900, 1000).bfloat16().t().requires_grad_()]
    size = sum(x.numel() for x in params) * 4
    optimizer = cls(params, p=5.0, weight_decay=0.1, foreach=True)
    assert peak_temporary_bytes(optimizer, params) <= size + 1_000_000


def test_state_is_what_the_design_says() -> None:
    for cls, options in ((LPSGD, {}), (LPSGDM, {"momentum": 0.0})):
        params: list[Any] = start()
        optimizer = cls(params, p=CosineP(6, total_steps=STEPS), **options)
        run(optimizer, params, gradients(2))
        for x in params:
            assert list(optimizer.state[x]) == ["step"]
    params = start()
    optimizer = LPSGDM(params)
    run(optimizer, params, gradients(2))
    steps = {id(optimizer.state[x]["step"]) for x in params}
    assert len(steps) == 1
    assert optimizer.state[params[0]]["step"].shape == ()
    assert len(SHAPES) == len(optimizer.state)


def test_lists_are_split_by_device_and_by_every_dtype() -> None:
    """Devices too: tensors of two devices in one foreach call fail on some, and pass on others."""
    params = [torch.zeros(2), torch.zeros(2, device="meta"), torch.zeros(2).bfloat16()]
    buffers = [torch.zeros_like(x, dtype=torch.float32) for x in params]
    split = list(_alike(params, params, buffers))
    assert [[id(x) for x in some[0]] for some in split] == [[id(x)] for x in params]


@pytest.mark.parametrize("path", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize(("p", "normalize"), [(2.0001, None), (3.0, None), (2.0, "rms")])
def test_gradients_near_the_largest_number(
    path: dict[str, bool], p: float, normalize: Normalize
) -> None:
    """Neither the kernel's lifted power nor the sum under the root may overflow before u does."""
    x = torch.linspace(2e38, 3.3e38, 400)
    x[::2] *= -1
    theta = torch.zeros(400, requires_grad=True)
    theta.grad = x.clone()
    LPSGD([theta], lr=1e-3, p=p, normalize=normalize, **path).step()
    u = x.double().sign() * x.double().abs() ** (1 / (p - 1))
    u = u / u.square().mean().sqrt() if normalize == "rms" else u
    # the step size of such gradients, 1e-3 / rms, is a denormal number
    torch.testing.assert_close(theta.detach().double(), -1e-3 * u, rtol=2e-4, atol=0)
