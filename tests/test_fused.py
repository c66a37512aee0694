"""The fused update: against float64 formulas, against the eager paths, and in odd surroundings."""

from __future__ import annotations

import gc
import itertools
import math
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from lpsgd import LPSGD, LPSGDM, CosineP, _bucket, _descent, fused, geometry, optimizer
from lpsgd import _rounding as rounding
from tests.process_group import distributed_tensor
from tests.torch_versions import needs_compiled_step, needs_torch

SOURCE = Path(fused.__file__).with_name("fused.c")
COMPILER = shutil.which(os.environ.get("CC", "cc"))

pytestmark = pytest.mark.skipif(
    fused.unavailable() is not None, reason=f"no kernel: {fused.unavailable()}"
)


@pytest.fixture(scope="module")
def plain_kernel(tmp_path_factory: pytest.TempPathFactory) -> fused.Kernel:
    """The source built without any option: no threads, no variants for newer processors."""
    if COMPILER is None:
        pytest.skip("no C compiler to make the plain build with")
    library = tmp_path_factory.mktemp("plain") / "plain.so"
    command = [COMPILER, "-O2", "-shared", "-fPIC", SOURCE, "-o", library, "-lm"]
    subprocess.run(command, check=True)
    return fused.load(library)


@pytest.fixture(params=["installed", "plain"])
def kernel(request: pytest.FixtureRequest) -> fused.Kernel | None:
    """Each build of the kernel in turn; None is the installed one."""
    return None if request.param == "installed" else request.getfixturevalue("plain_kernel")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Short work on a busy machine wants no more; conftest undoes it."""
    torch.set_num_threads(1)


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_kernel", None)
    monkeypatch.setattr(fused, "_why_not", "it was not built")


def direction(x: Tensor, kernel: fused.Kernel | None, p: float, eps: float, **options) -> Tensor:
    """u as the kernel computes it: a step of 1 from zero."""
    theta = torch.zeros_like(x)
    settings = {"momentum": 0.0, "normalize": None, **options}
    fused.kernel_step(
        [theta], [x], None, p=p, step=1.0, keep=1.0, eps=eps, kernel=kernel, **settings
    )
    return theta


def formula(x: Tensor, p: float, eps: float, normalize: str | None = None) -> Tensor:
    """u in float64, as DESIGN writes it."""
    x = x.double()
    rho = 1 - 1 / (p - 1)
    u = x / (x.abs() + eps) ** rho
    if normalize == "rms":
        return u / max(u.square().mean().sqrt().item(), eps / (2 * eps) ** rho)
    if normalize == "dual":
        q = 1 + 1 / (p - 1)
        return u * (x.abs() ** q).sum() ** (rho / q)
    return u


def spread(low: float, high: float, count: int = 100_000) -> Tensor:
    """Values of both signs whose magnitudes are spread evenly over the exponents."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(count, dtype=torch.float64, generator=generator) * (high - low) + low
    signs = torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)
    return (10**exponents * signs).float()


# --- accuracy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2.0, 2.0001, 2.5, 3.0, 6.0, 20.0, 1000.0, math.inf])
@pytest.mark.parametrize(
    ("low", "high", "eps", "bound"), [(-8, 3, 1e-8, 2e-6), (-30, 30, 1e-30, 1e-5)]
)
def test_relative_error_of_the_update(kernel, p, low, high, eps, bound):
    x = spread(low, high)
    expected = formula(x, p, eps)
    error = (direction(x, kernel, p, eps).double() - expected) / expected
    assert error.abs().max() <= bound


@pytest.mark.parametrize("p", [2.0, 2.5, 6.0, 1000.0, math.inf])
@pytest.mark.parametrize("eps", [1e-8, 1e-30, 1e-40])
def test_special_values_are_as_in_the_eager_path(kernel, p, eps):
    largest, tiny = torch.finfo(torch.float32).max, 1e-45
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, largest, -largest, tiny, -tiny, 1e-40]
    x = torch.tensor(special * 7)  # a vector register and more
    # float32 torch; the quotient, as x times the inverse overflows where eps is denormal
    expected = x / (x.abs() + eps) ** geometry.rho(p)
    torch.testing.assert_close(
        direction(x, kernel, p, eps), expected, rtol=1e-5, atol=0.0, equal_nan=True
    )


@pytest.mark.parametrize("normalize", ["rms", "dual"])
@pytest.mark.parametrize("p", [2.0, 2.5, 6.0, 1000.0, math.inf])
@pytest.mark.parametrize("scale", [-30, -3, 29])
def test_normalized_direction_neither_overflows_nor_vanishes(kernel, normalize, p, scale):
    x = spread(scale - 2, scale, 20_000)
    eps = 10.0 ** (scale - 6)
    expected = formula(x, p, eps, normalize)
    actual = direction(x, kernel, p, eps, normalize=normalize).double()
    assert ((actual - expected) / expected).abs().max() <= 1e-5


def test_rms_of_zeros_is_zero_and_a_tensor_below_eps_fades(kernel):
    assert not direction(torch.zeros(100), kernel, 6.0, 1e-8, normalize="rms").any()
    faint = direction(torch.full((100,), 1e-12), kernel, 6.0, 1e-8, normalize="rms")
    expected = formula(torch.full((100,), 1e-12), 6.0, 1e-8, "rms")
    torch.testing.assert_close(faint.double(), expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("normalize", ["rms", "dual"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_entry_spoils_a_normalized_tensor_as_in_the_eager_path(kernel, normalize, bad):
    x = torch.ones(3000)
    x[1234] = bad
    expected = geometry.normalized_direction(x, 6.0, 1e-8, normalize)
    actual = direction(x, kernel, 6.0, 1e-8, normalize=normalize)
    assert expected.isnan().all()
    assert actual.isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_as_torch_rounds(kernel, dtype):
    """Every half value through p = 2, keep = 0: what is read is written; and every rounding."""
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    torch.testing.assert_close(
        direction(halves, kernel, 2.0, 1e-8), halves, rtol=0, atol=0, equal_nan=True
    )
    wide = torch.cat([spread(-9, 6), torch.tensor([65519.9, 65520.0, 3e38, 2.0**-25, 1e-45])])
    momentum = torch.zeros_like(wide, dtype=dtype)
    theta = torch.zeros_like(wide)
    fused.kernel_step(
        [theta], [wide], [momentum], p=2.0, step=1.0, keep=1.0, momentum=0.0, eps=1e-8,
        normalize=None, kernel=kernel,
    )  # fmt: skip
    expected = wide.to(dtype)
    if dtype == torch.bfloat16:  # a momentum of bfloat16 is rounded stochastically
        rounding.round_into(expected, wide, rounding.noise_key(0, 0, rounding.MOMENTUM))
    assert torch.equal(momentum, expected)
    assert torch.equal(theta, wide)  # the direction is taken before the buffer is rounded

    narrow = torch.zeros_like(wide, dtype=dtype)
    fused.kernel_step(
        [narrow], [wide], None, p=2.0, step=1.0, keep=1.0, momentum=0.0, eps=1e-8,
        normalize=None, kernel=kernel,
    )  # fmt: skip
    assert torch.equal(narrow, wide.to(dtype))


@pytest.mark.parametrize("normalize", [None, "rms", "dual"])
def test_tensors_of_every_length(kernel, normalize):
    """Lengths around the sizes of vectors, blocks and chunks, stepped together."""
    lengths = [0, 1, 2, 7, 8, 31, 32, 33, 511, 512, 513, 1025, 16383, 16384, 16385, 40001, 1]
    grads = [spread(-4, 1, length) for length in lengths]
    params = [torch.ones(length) for length in lengths]
    fused.kernel_step(
        params, grads, None, p=4.0, step=-0.1, keep=0.5, momentum=0.0, eps=1e-8,
        normalize=normalize, kernel=kernel,
    )  # fmt: skip
    for param, grad in zip(params, grads, strict=True):
        if len(grad):
            expected = 0.5 - 0.1 * formula(grad, 4.0, 1e-8, normalize)
            torch.testing.assert_close(param.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("normalize", ["rms", "dual"])
def test_tensors_that_are_reduced_in_several_groups(kernel, normalize):
    """Both passes go over about a million elements before the next tensors' turn."""
    sizes = [3, 700_000, 600_000, 1_200_000, 0, 17]
    params, grads = ([spread(-4, 1, size) for size in sizes] for _ in range(2))
    buffers = [torch.zeros(size) for size in sizes]
    before = [param.double() for param in params]
    fused.kernel_step(
        params, grads, buffers, p=4.0, step=-0.1, keep=0.5, momentum=0.9, eps=1e-8,
        normalize=normalize, kernel=kernel,
    )  # fmt: skip
    for param, m, old, grad in zip(params, buffers, before, grads, strict=True):
        torch.testing.assert_close(m, 0.1 * grad)
        if len(grad):
            step = formula(m, 4.0, 1e-8, normalize)
            torch.testing.assert_close(param.double(), 0.5 * old - 0.1 * step, rtol=3e-6, atol=3e-6)


# --- equality with the eager paths ------------------------------------------------------------

SHAPES = [(3,), (64, 33), (), (17, 3, 5, 5), (0, 4), (40000,)]
PS = [6.0, 2.0, math.inf, 3.7, 2.01]


def steps_of(cls, dtype, steps=50, **settings) -> Iterator[tuple[list[Tensor], LPSGD]]:
    """A run, which stops before each step when the gradients are there, and after the last."""
    generator = torch.Generator().manual_seed(1)

    def draw(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    params = [torch.nn.Parameter(draw(shape)) for shape in SHAPES]
    opt = cls(params, lr=0.01, weight_decay=0.1, **settings)
    for step in range(steps):
        opt.param_groups[0]["p"] = PS[step % len(PS)]
        for index, param in enumerate(params):
            param.grad = draw(param.shape) * 10.0**-index
        yield params, opt
        opt.step()
    yield params, opt


def trajectory(cls, dtype, steps=50, **settings) -> tuple[list[Tensor], LPSGD]:
    *_, last = steps_of(cls, dtype, steps, **settings)
    return last


def follows_the_formula(cls, dtype, steps, bound, **settings) -> None:
    """Each step is that of the float64 formula on what the tensors held before it.

    m has the rounding error of float32, for which u, that grows with m, has an upper and a lower
    bound. Two runs of different builds part after a while, where m is small by cancellation; a
    single step of every build and every path keeps to this.
    """
    before: list[tuple[Tensor, Tensor, Tensor]] = []
    p = 2.0
    for params, opt in steps_of(cls, dtype, steps, **settings):
        held = [opt.state[param].get("momentum_buffer") for param in params]
        for param, m, old in zip(params, held, before, strict=bool(before)):
            if param.numel():
                check_step(param, m, *old, p, opt.param_groups[0], bound)
        before = [
            (
                param.detach().double(),
                param.detach().double() * 0 if m is None else m.double(),
                param.grad.double(),
            )
            for param, m in zip(params, held, strict=True)
        ]
        p = opt.param_groups[0]["p"]


def check_step(param, m, theta, old, grad, p, group, bound) -> None:
    weight = 1 - group.get("momentum", 0.0)
    single = 2.0**-23
    average = old + weight * (grad - old)
    error = single * (old.abs() + grad.abs())
    if m is not None:
        assert m.dtype == (group["state_dtype"] or torch.float32)
        assert ((m.double() - average).abs() <= error + last_place(m)).all()
    exact = formula(average, p, group["eps"], group["normalize"])
    plain = formula(average, p, group["eps"])
    factor = torch.where(plain == 0, 1.0, exact / torch.where(plain == 0, 1.0, plain))
    low, high = (formula(average + side * error, p, group["eps"]) * factor for side in (-1.0, 1.0))
    rate = group["lr"] if group["maximize"] else -group["lr"]
    kept = theta * (1 - group["lr"] * group["weight_decay"])
    bounds = torch.stack([kept + rate * low, kept + rate * high])
    slack = abs(rate) * bound * exact.abs() + single * theta.abs() + last_place(param)
    new = param.detach().double()
    assert (new >= bounds.amin(0) - slack).all()
    assert (new <= bounds.amax(0) + slack).all()


def last_place(rounded: Tensor) -> Tensor:
    """A unit in the last place of each number; stochastic rounding may take all of it."""
    limits = torch.finfo(rounded.dtype)
    return limits.eps * rounded.detach().double().abs().clamp(min=limits.smallest_normal)


def options():
    for normalize, maximize in itertools.product([None, "rms", "dual"], [False, True]):
        yield LPSGD, {"normalize": normalize, "maximize": maximize}
        yield LPSGDM, {"normalize": normalize, "maximize": maximize}
    yield LPSGDM, {"momentum": 0.0}
    yield LPSGDM, {"momentum": 0.3, "eps": 1e-3}
    yield LPSGDM, {"eps": 1e-38}


@pytest.fixture(params=["installed", "plain", "foreach"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Each build of the kernel, and the path that must agree with it, in many small parts."""
    if request.param == "plain":
        monkeypatch.setattr(fused, "_kernel", request.getfixturevalue("plain_kernel"))
    if request.param == "foreach":
        monkeypatch.setattr(_bucket, "_PART", 1000)
    return {"foreach": True} if request.param == "foreach" else {"fused": True}


@pytest.mark.parametrize(("cls", "settings"), list(options()))
def test_every_step_of_a_run_is_the_formula_s(path, cls, settings):
    bound = 1e-5 if "foreach" in path or settings.get("normalize") else 2e-6
    follows_the_formula(cls, torch.float32, 20, bound, **path, **settings)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("normalize", [None, "rms", "dual"])
def test_every_step_of_a_run_in_half_precision_is_the_formula_s(
    path, dtype, state_dtype, normalize
):
    settings = {"normalize": normalize, "state_dtype": state_dtype}
    follows_the_formula(LPSGDM, dtype, 10, 1e-5, **path, **settings)


def test_complex_parameters():
    params = [torch.nn.Parameter(torch.randn(30, dtype=torch.complex64)) for _ in range(2)]
    params[1].data.copy_(params[0].data)
    for param in params:
        param.grad = torch.full_like(param, 0.3 - 0.2j)
    LPSGDM(params[:1], fused=True).step()
    LPSGDM(params[1:], foreach=False).step()
    torch.testing.assert_close(*params)


@pytest.mark.parametrize("normalize", [None, "rms", "dual"])
def test_the_number_of_threads_does_not_change_a_bit(normalize):
    results = []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        results.append(trajectory(LPSGDM, torch.float32, 5, fused=True, normalize=normalize)[0])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


# --- which path is taken ----------------------------------------------------------------------


def chosen(params: list[Tensor], **settings) -> str:
    settings = {
        "foreach": None,
        "fused": None,
        "capturable": False,
        "differentiable": False,
    } | settings
    grads = [torch.zeros_like(param) for param in params]
    return _descent._rule(params, grads, None, **settings).__name__


def test_none_chooses_the_kernel_where_it_can_run():
    assert chosen([torch.ones(3)]) == "_kernel"
    assert chosen([torch.ones(3)], fused=False) == "_multi_tensor"
    assert chosen([torch.ones(3)], foreach=True) == "_multi_tensor"
    assert chosen([torch.ones(3)], foreach=False) == "_single_tensor"
    assert chosen([torch.ones(3)], differentiable=True) == "_single_tensor"
    assert chosen([torch.ones(3)], capturable=True) == "_multi_tensor"
    assert chosen([torch.ones(3), torch.ones(3).double()]) == "_multi_tensor"
    assert chosen([torch.ones(6)[::2]]) == "_multi_tensor"


@pytest.mark.usefixtures("no_kernel")
def test_without_a_kernel_foreach_serves_and_fused_says_why():
    assert chosen([torch.ones(3)]) == "_multi_tensor"
    with pytest.raises(RuntimeError, match="fused=True cannot run here: it was not built"):
        LPSGDM([torch.nn.Parameter(torch.ones(3))], fused=True)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to make an old library with")
@pytest.mark.parametrize("source", ["", "int lpsgd_version(void) { return 0; }"])
def test_a_library_of_another_version_is_refused(tmp_path, source):
    """Its arguments may mean something else: to call it would write where it should not."""
    (tmp_path / "old.c").write_text(source + "\nint lpsgd_step(void) { return 0; }\n")
    library = tmp_path / "old.so"
    command = [COMPILER, "-shared", "-fPIC", tmp_path / "old.c", "-o", library]
    subprocess.run(command, check=True)
    with pytest.raises(OSError, match=r"old.so has version 0 of the kernel, where \d+ is needed"):
        fused.load(library)


@pytest.mark.parametrize(
    ("param", "message"),
    [
        (torch.ones(3, dtype=torch.float64), "bfloat16 and float16, not torch.float64 on cpu"),
        (torch.ones(6)[::2], r"without gaps, not strides \(2,\)"),
        (torch.ones(1).expand(4), r"without gaps, not strides \(0,\)"),
    ],
)
def test_fused_refuses_what_the_kernel_does_not_take(param, message):
    opt = LPSGD([torch.ones(2, requires_grad=True)], fused=True)
    with pytest.raises(RuntimeError, match=message):
        opt.add_param_group({"params": [param.requires_grad_()]})
    assert len(opt.param_groups) == 1


def test_a_buffer_laid_out_otherwise_is_refused():
    param = torch.nn.Parameter(torch.ones(2, 3, 4, 4))
    param.grad = torch.ones_like(param)
    opt = LPSGDM([param], fused=True)
    opt.step()
    state = opt.state[param]
    state["momentum_buffer"] = state["momentum_buffer"].to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="laid out like its parameter"):
        opt.step()
    opt.param_groups[0]["fused"] = None
    opt.step()


def test_layouts_other_than_the_usual():
    grads = [spread(-3, 0, 96).view(2, 3, 4, 4), spread(-3, 0, 96).view(2, 3, 4, 4)]
    results = []
    for settings in ({"fused": True}, {"foreach": False}):
        a = torch.nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
        b = torch.nn.Parameter(torch.ones(2, 3, 4, 4).transpose(0, 3))
        a.grad, b.grad = grads[0], torch.empty_like(b).copy_(grads[1].transpose(0, 3))
        opt = LPSGDM([a, b], lr=0.1, **settings)
        opt.step()
        opt.step()
        results.append((a, b))
    torch.testing.assert_close(results[0], results[1])


def test_dtensor_parameters(tmp_path):
    dist = torch.distributed
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        param = torch.nn.Parameter(distributed_tensor().distribute_tensor(torch.ones(4), mesh))
        assert chosen([param]) == "_multi_tensor"
        with pytest.raises(RuntimeError, match="a parameter is a DTensor"):
            LPSGDM([param], fused=True)
    finally:
        dist.destroy_process_group()


def test_state_saved_with_the_kernel_loads_without(monkeypatch):
    params, opt = trajectory(LPSGDM, torch.float32, 3)
    saved = opt.state_dict()
    twins = [torch.nn.Parameter(param.detach().clone()) for param in params]
    for twin, param in zip(twins, params, strict=True):
        twin.grad = param.grad.clone()
    other = LPSGDM(twins)
    other.load_state_dict(saved)
    opt.step()
    monkeypatch.setattr(fused, "_kernel", None)
    other.step()
    for twin, param in zip(twins, params, strict=True):
        torch.testing.assert_close(twin, param)


def stepped(**settings) -> tuple[torch.nn.Parameter, LPSGDM]:
    param = torch.nn.Parameter(torch.ones(8))
    param.grad = torch.ones(8)
    opt = LPSGDM([param], **settings)
    opt.step()
    return param, opt


@pytest.mark.parametrize(
    ("momentum", "reason"),
    [
        (torch.zeros(2), "a momentum has another number of elements than its parameter"),
        (torch.zeros(8, device="meta"), "runs on a CPU, and a momentum is torch.float32 on meta"),
    ],
)
def test_a_momentum_that_is_not_its_parameter_s_is_no_memory_to_write_to(momentum, reason):
    """A file of another model, say: bare pointers would lead out of the tensor."""
    for settings, message in (({}, "size of tensor|expected device"), ({"fused": True}, reason)):
        param, opt = stepped(**settings)
        opt.state[param]["momentum_buffer"] = momentum.clone()
        before = param.detach().clone()
        with pytest.raises(RuntimeError, match=message):
            opt.step()
        assert torch.equal(param, before)


def test_a_gradient_of_another_size_is_refused():
    for settings, message in (({}, "size of tensor"), ({"fused": True}, "a gradient has another")):
        param, opt = stepped(**settings)
        param.data = torch.ones(1000)  # torch leaves the gradient as it was
        opt.state[param]["momentum_buffer"] = torch.zeros(1000)
        with pytest.raises(RuntimeError, match=message):
            opt.step()
        assert torch.equal(param, torch.ones(1000))


def test_a_gradient_of_a_class_of_its_own_has_no_memory_to_read():
    """What a functional collective returns is a wrapper whose data pointer is null."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    param, opt = stepped()
    twin, expected = stepped()
    param.grad = AsyncCollectiveTensor(torch.ones(8))
    for each in (opt, expected):
        each.step()
    torch.testing.assert_close(param, twin)
    param, opt = stepped(fused=True)
    param.grad = AsyncCollectiveTensor(torch.ones(8))
    with pytest.raises(RuntimeError, match="a gradient is a AsyncCollectiveTensor"):
        opt.step()


def test_a_gradient_whose_memory_holds_its_negative():
    """autograd leaves one where a parameter of one element is the imaginary part of a conj()."""
    real, imaginary = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    (torch.complex(real, imaginary).conj() * (3 + 4j)).real.sum().backward()
    assert imaginary.grad is not None
    assert imaginary.grad.is_neg()
    LPSGD([real, imaginary], lr=0.1, p=2.0, fused=True).step()  # the gradient is (3, 4)
    torch.testing.assert_close([real.item(), imaginary.item()], [0.7, 0.6])
    assert imaginary.grad.item() == 4


@pytest.mark.parametrize("p", [2.0, 4.0, math.inf])
@pytest.mark.parametrize("normalize", [None, "rms", "dual"])
def test_an_infinite_gradient_does_what_it_does_on_the_plain_path(p, normalize):
    moved = []
    for settings in ({"fused": True}, {"foreach": False}):
        param = torch.nn.Parameter(torch.ones(3))
        param.grad = torch.tensor([1.0, math.inf, 0.0])
        LPSGD([param], lr=0.1, p=p, normalize=normalize, **settings).step()
        moved.append(param)
    torch.testing.assert_close(*moved, equal_nan=True)


# --- what changes between steps ----------------------------------------------------------------


def new_memory(opt, param):
    param.data = param.data.clone() + 1


def transposed_in_place(opt, param):
    """Neither address nor size tell; the momentum is turned with it."""
    param.data = param.data.t()
    opt.state[param]["momentum_buffer"] = opt.state[param]["momentum_buffer"].t()
    param.grad = None
    param.grad = torch.full(param.shape, 0.3)
    param.grad[0, 0] = -2.0


def fewer_rows_of_the_same_memory(opt, param):
    param.data = param.data[:2]
    opt.state[param]["momentum_buffer"] = opt.state[param]["momentum_buffer"][:2]
    param.grad = torch.full_like(param, 0.4)


def gradient_in_another_order(opt, param):
    param.grad = torch.arange(12.0).view(4, 3).t().contiguous().t()


def gradient_in_new_memory(opt, param):
    param.grad = torch.arange(12.0).view(4, 3)


def gradient_by_its_negative(opt, param):
    param.grad = torch._neg_view(torch.arange(12.0).view(4, 3))


def momentum_of_another_dtype(opt, param):
    opt.state[param]["momentum_buffer"] = opt.state[param]["momentum_buffer"].half()


def loaded_state(opt, param):
    saved = opt.state_dict()
    saved["state"][0]["momentum_buffer"] = torch.full_like(param.detach(), 0.7)
    opt.load_state_dict(saved)


def group_added(opt, param):
    other = torch.nn.Parameter(torch.ones(5))
    other.grad = torch.ones(5)
    opt.add_param_group({"params": [other], "lr": 0.3})


def parameter_added_to_a_group(opt, param):
    other = torch.nn.Parameter(torch.ones(5))
    other.grad = torch.ones(5)
    opt.param_groups[0]["params"].append(other)


CHANGES = [
    new_memory, transposed_in_place, fewer_rows_of_the_same_memory, gradient_in_another_order,
    gradient_in_new_memory, gradient_by_its_negative, momentum_of_another_dtype, loaded_state,
    group_added, parameter_added_to_a_group,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_remembered_of_an_earlier_step_is_never_stale(change):
    """The same change on the plain path, which remembers nothing."""
    ends = []
    for settings in ({"fused": True}, {"foreach": False}):
        params = [
            torch.nn.Parameter(torch.arange(12.0).view(4, 3)),
            torch.nn.Parameter(torch.ones(7)),
        ]
        for param in params:
            param.grad = torch.full_like(param, 0.1)
        opt = LPSGDM(params, lr=0.1, p=4.0, **settings)
        for _ in range(3):
            opt.step()
        change(opt, params[0])
        for _ in range(2):
            opt.step()
        everything = [param for group in opt.param_groups for param in group["params"]]
        ends.append([*everything, *[opt.state[param]["momentum_buffer"] for param in everything]])
    torch.testing.assert_close(*ends)


def test_an_unchanged_step_is_known_and_keeps_nothing_alive():
    param, opt = stepped(fused=True)
    buffer = opt.state[param]["momentum_buffer"]
    assert fused.known([param], [param.grad], [buffer]) is not None
    assert fused.known([param], [param.grad.clone()], [buffer]) is not None
    assert fused.known([param], [param.grad], [buffer.clone()]) is None
    assert fused.known([param], [param.grad[:4]], [buffer]) is None
    assert fused.known([param], [param.grad.double()], [buffer]) is None
    references = [weakref.ref(param), weakref.ref(buffer)]
    del param, opt, buffer
    gc.collect()
    assert [reference() for reference in references] == [None, None]


# --- surroundings -----------------------------------------------------------------------------


def test_autograd_learns_that_parameters_were_written():
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    weight.grad = torch.ones(3)
    LPSGDM([weight], fused=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_temporary_memory():
    def allocated(**settings) -> int:
        param = torch.nn.Parameter(torch.ones(100_000))
        param.grad = torch.ones_like(param)
        opt = LPSGDM([param], **settings)
        opt.step()  # makes the momentum
        with torch.profiler.profile(profile_memory=True) as profile:
            opt.step()
        sizes = [event.self_cpu_memory_usage for event in profile.events()]
        return sum(size for size in sizes if size > 0)

    assert allocated(foreach=True) >= 400_000
    assert allocated(fused=True) < 1000


def test_the_library_leaves_denormal_numbers_alone():
    """Linking with -ffast-math would make the whole process flush them to zero."""
    assert sys.float_info.min / 4 > 0
    assert torch.tensor(1e-40) * 0.5 > 0


def test_python_threads_step_different_optimizers_at_once():
    expected, _ = trajectory(LPSGDM, torch.float32, 10, fused=True)
    results: list[list[Tensor]] = []

    def work() -> None:
        results.append(trajectory(LPSGDM, torch.float32, 10, fused=True)[0])

    torch.set_num_threads(2)
    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 6
    for result in results:
        assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


FORK = """
import os, signal, torch
from lpsgd import LPSGDM
torch.set_num_threads(4)
param = torch.nn.Parameter(torch.ones(200_000))
twin = torch.nn.Parameter(torch.ones(200_000))
param.grad = twin.grad = torch.full((200_000,), 0.5)
ours, theirs = LPSGDM([param], fused=True), LPSGDM([twin], fused=True)
ours.step(), theirs.step()   # threads are up now
child = os.fork()
if child == 0:
    signal.alarm(20)         # a child that hangs is killed
    ours.step()
    torch.set_num_threads(1)
    right = bool((param - 1).abs().max() > 0)
    os._exit(0 if right else 3)
_, status = os.waitpid(child, 0)
theirs.step()                # the parent still steps, with threads
assert os.waitstatus_to_exitcode(status) == 0, status
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_after_a_parallel_step_does_not_hang():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=60)


# --- torch.compile ----------------------------------------------------------------------------


def small_step(**settings) -> list[Tensor]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(20, 5)) for _ in range(3)]
    buffers = [torch.randn(20, 5) for _ in params]
    grads = [torch.randn(20, 5) for _ in params]
    run = settings.pop("run", optimizer.lp_descent)
    with torch.no_grad():
        run(params, grads, buffers, p=6.0, lr=0.1, momentum=0.9, weight_decay=0.1, **settings)
    return [*params, *buffers]


@needs_compiled_step
def test_the_operator_keeps_torch_library_s_rules():
    number = torch.tensor(1.0, dtype=torch.float64)
    tensors = [[torch.randn(5), torch.randn(3)] for _ in range(3)]
    for buffers in (tensors[2], []):
        settings = (number * 6, -number, number, 0.9, 1e-8, "rms", torch.tensor(3))
        arguments = (tensors[0], tensors[1], buffers, *settings)
        torch.library.opcheck(torch.ops.lpsgd.step.default, arguments)


@needs_torch(2, 13, "older ones break the graph at sets, and take the same steps")
def test_compiled_with_the_kernel_is_one_operator_in_one_graph():
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(optimizer.lp_descent, backend=backend, fullgraph=True)
    assert all(map(torch.equal, small_step(run=compiled, fused=True), small_step(fused=True)))
    (graph,) = graphs
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert sum("lpsgd.step" in name for name in names) == 1
    assert not any("foreach" in name or "pow" in name for name in names)


@pytest.mark.slow
def test_the_compiled_optimizer_steps_in_place_and_compiles_once():
    def run(compiled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(20, 5)) for _ in range(3)]
        opt = LPSGDM(params, lr=0.1, p=CosineP(6, total_steps=6), fused=True)
        step = torch.compile(opt.step) if compiled else opt.step
        for index in range(6):
            opt.param_groups[0]["lr"] = 0.1 / (1 + index)
            for param in params:
                param.grad = torch.randn(20, 5)
            step()
        return params

    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.testing.assert_close(run(True), run(False))


@pytest.mark.slow
def test_the_update_compiled_for_other_devices_on_the_cpu_back_end(monkeypatch):
    monkeypatch.setattr(_descent, "demand_fused", lambda *_: "compiled")
    torch.compiler.reset()
    for settings in ({}, {"normalize": "rms"}, {"normalize": "dual", "maximize": True}):
        torch.testing.assert_close(
            small_step(fused=True, **settings), small_step(foreach=False, **settings)
        )


# --- building ---------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]


def build(tmp_path: Path, compiler: str) -> tuple[Path, str]:
    """Build the kernel as an installation does, with ``compiler`` as the C compiler."""
    tmp_path.mkdir(exist_ok=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "src"):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(source, tmp_path / name, ignore=ignored)
        elif source.exists():
            shutil.copy(source, tmp_path)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "build_ext", "--inplace"],
        cwd=tmp_path,
        env={**os.environ, "CC": compiler, "LDSHARED": f"{compiler} -shared"},
        capture_output=True,
        text=True,
        check=True,
    )
    return tmp_path / "src" / "lpsgd" / "_fused.so", result.stdout + result.stderr


def test_installs_without_a_compiler(tmp_path):
    pytest.importorskip("setuptools")
    library, output = build(tmp_path, "false")
    assert not library.exists()
    assert "lpsgd will use its eager paths" in output


def test_builds_where_the_compiler_knows_neither_openmp_nor_clones(tmp_path):
    pytest.importorskip("setuptools")
    if COMPILER is None:
        pytest.skip("no C compiler")
    modest = tmp_path / "modest-cc"
    refuse = 'for a; do case "$a" in -fopenmp*|*CLONES) exit 1;; esac; done'
    modest.write_text(f'#!/bin/sh\n{refuse}\nexec {COMPILER} "$@"\n')
    modest.chmod(0o755)
    library, output = build(tmp_path / "copy", str(modest))
    assert "built the fused kernel with plain flags" in output
    x = spread(-3, 0, 100)
    u = direction(x, fused.load(library), 6.0, 1e-8)
    torch.testing.assert_close(u.double(), formula(x, 6.0, 1e-8), rtol=2e-6, atol=0.0)
