"""Tensors whose memory is not (yet, or any longer) what it seems: meta, lazy, freed, negative."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpsgd import LPSGD, LPSGDM, CosineP, fused
from lpsgd.peers import Lion, LionK, PowerSGDM, SignSGD, Signum, Stacey

KERNEL = pytest.param(
    {"fused": True},
    marks=pytest.mark.skipif(fused.unavailable() is not None, reason="there is no kernel"),
    id="fused",
)
PATHS = [
    pytest.param({}, id="default"),
    pytest.param({"foreach": True}, id="foreach"),
    pytest.param({"foreach": False}, id="loop"),
    KERNEL,
]
PEERS = [Lion, LionK, PowerSGDM, SignSGD, Signum, Stacey]


# --- meta and lazy ----------------------------------------------------------------------------


@pytest.fixture
def _swap_on_conversion() -> Iterator[None]:
    """The way of torch in which a parameter stays the same object when it leaves the meta device"""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def meta_model() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(3, 2)


@KERNEL.marks[0]
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_on_a_device_without_a_kernel_is_refused_at_the_step(dtype: torch.dtype) -> None:
    """At the step as in torch, because the parameters may have come to a device by then."""
    model = meta_model().to(dtype)
    params = list(model.parameters())
    mixed = [*params, torch.ones(3, requires_grad=True)]
    for some in (params, mixed):
        optimizer = LPSGDM(some, fused=True)
        for param in some:
            param.grad = torch.zeros_like(param)
        with pytest.raises(RuntimeError, match=rf"fused=True cannot run here: .*{dtype} on meta"):
            optimizer.step()
    assert torch.equal(mixed[-1], torch.ones(3))


@KERNEL.marks[0]
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_fused_of_a_dtype_without_a_kernel_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeError, match=r"not torch\.float64 on cpu"):
        LPSGDM([torch.ones(3, dtype=dtype, requires_grad=True)], fused=True)


@pytest.mark.usefixtures("_swap_on_conversion")
@pytest.mark.parametrize("p", [3.0, CosineP(6, total_steps=5)])
@pytest.mark.parametrize(
    "settings", [*PATHS, {"capturable": True}, {"normalize": "rms"}, {"differentiable": True}]
)
def test_a_model_that_leaves_the_meta_device_after_the_optimizer_was_made(
    settings: dict[str, Any], p: Any
) -> None:
    model = meta_model()
    optimizer = LPSGDM(model.parameters(), lr=0.1, p=p, **settings)
    model.to_empty(device="cpu")
    twin = nn.Linear(3, 2)
    model.load_state_dict(twin.state_dict())
    other = LPSGDM(twin.parameters(), lr=0.1, p=p, **settings)
    for each, opt in ((model, optimizer), (twin, other)):
        for param in each.parameters():
            param.requires_grad_(not settings.get("differentiable"))
        for _ in range(2):
            for param in each.parameters():
                param.grad = torch.linspace(-1, 1, param.numel()).view_as(param)
            opt.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    assert float(optimizer.param_groups[0]["p"]) == float(other.param_groups[0]["p"])


@pytest.mark.parametrize("settings", [*PATHS, {"capturable": True}])
def test_parameters_whose_shape_is_not_known_yet(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(1))
    optimizer = LPSGDM(model.parameters(), lr=0.1, **settings)
    optimizer.step()  # no gradient yet: nothing to do
    repr(optimizer)
    LPSGDM(model.parameters(), **settings).load_state_dict(optimizer.state_dict())
    model(torch.ones(2, 3)).sum().backward()
    before = [param.detach().clone() for param in model.parameters()]
    optimizer.step()
    for param, old in zip(model.parameters(), before, strict=True):
        assert not torch.equal(param, old)


# --- freed ------------------------------------------------------------------------------------


def stepped(make: Callable[..., Any], **settings: Any) -> tuple[dict[str, Tensor], Any]:
    """An optimizer after a step, and its tensors: views into longer ones, as FSDP's are."""
    param = nn.Parameter(torch.ones(100)[10:20])
    param.grad = torch.ones(50)[5:15]
    optimizer = make([nn.Parameter(torch.ones(4)), param], lr=0.1, **settings)
    optimizer.step()
    tensors = {"parameter": param, "gradient": param.grad}
    if "momentum_buffer" in optimizer.state[param]:
        tensors["momentum"] = optimizer.state[param]["momentum_buffer"]
    return tensors, optimizer


@pytest.mark.parametrize("settings", PATHS)
@pytest.mark.parametrize("make", [LPSGD, LPSGDM])
def test_memory_that_was_freed_is_not_touched(make: Any, settings: dict[str, Any]) -> None:
    """FSDP1 and offloaders leave tensors whose storage has no bytes; torch's loops would crash."""
    for role in stepped(make)[0]:
        tensors, optimizer = stepped(make, **settings)
        tensors[role].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=rf"a {role} of shape \(10,\) has no memory"):
            optimizer.step()


@pytest.mark.parametrize("make", PEERS)
def test_memory_that_was_freed_is_not_touched_by_peers(make: Any) -> None:
    for role in stepped(make)[0]:
        tensors, optimizer = stepped(make)
        tensors[role].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="has no memory"):
            optimizer.step()


def test_an_empty_tensor_needs_no_memory() -> None:
    for settings in ({}, {"foreach": True}, {"foreach": False}):
        param = nn.Parameter(torch.ones(0, 3))
        param.grad = torch.ones(0, 3)
        LPSGDM([param], **settings).step()


# --- negative and conjugate -------------------------------------------------------------------


def negative(values: Tensor) -> Tensor:
    """The same values, in a view whose memory holds their negatives."""
    view = torch._neg_view(-values)
    assert view.is_neg()
    return view


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("normalize", [None, "rms", "dual"])
@pytest.mark.parametrize("settings", PATHS)
@pytest.mark.parametrize("roles", [{"parameter"}, {"gradient"}, {"momentum"}, {"parameter", "m"}])
def test_a_view_whose_memory_holds_the_negative(
    roles: set[str], settings: dict[str, Any], normalize: Any, dtype: torch.dtype
) -> None:
    """It moves as the same numbers do elsewhere, or an error says what to do."""
    if dtype == torch.float64 and "fused" in settings:
        return
    moved = []
    for view in (Tensor.clone, negative):
        param = torch.linspace(1, 2, 6, dtype=dtype)
        param = (view(param) if "parameter" in roles else param).requires_grad_()
        grad = torch.linspace(-1, 2, 6, dtype=dtype)
        param.grad = view(grad) if "gradient" in roles else grad
        try:
            optimizer = LPSGDM([param], lr=0.1, p=3.0, normalize=normalize, **settings)
            optimizer.step()
            if "momentum" in roles:
                state = optimizer.state[param]
                state["momentum_buffer"] = view(state["momentum_buffer"])
            optimizer.step()
        except RuntimeError as error:
            refused = "negati" in str(error)  # torch's words, or ours; the default handles it
            assert refused
            assert roles != {"gradient"}
            assert {"fused", "foreach"} & settings.keys()
            return
        moved.append(param.detach().resolve_neg())
    torch.testing.assert_close(*moved)


def test_a_negative_view_of_memory_that_was_stepped_before() -> None:
    """What is known of the tensor that lay there does not hold of the view."""
    plain = torch.linspace(1, 2, 6).requires_grad_()
    plain.grad = torch.linspace(-1, 2, 6)
    LPSGD([plain], lr=0.1, p=3.0).step()
    view = torch._neg_view(plain.detach()).requires_grad_()
    view.grad = plain.grad
    same = view.detach().clone().requires_grad_()
    same.grad = view.grad
    for param in (view, same):
        LPSGD([param], lr=0.1, p=3.0).step()
    torch.testing.assert_close(view.detach().resolve_neg(), same.detach())


def test_the_imaginary_part_of_a_conjugate_moves_downhill() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    param = z.conj().imag.requires_grad_()
    assert param.is_neg()
    before = param.detach().clone()
    optimizer = LPSGDM([param], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        param.square().sum().backward()
        optimizer.step()
    assert (param.detach().abs() < before.abs()).all()


@pytest.mark.parametrize("make", PEERS)
def test_peers_refuse_a_parameter_that_is_a_negative_view(make: Any) -> None:
    param = negative(torch.ones(3)).requires_grad_()
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="negation"):  # torch's own words
        make([param]).step()
    twins = [torch.ones(3, requires_grad=True) for _ in range(2)]
    for twin, grad in zip(twins, (torch.ones(3), negative(torch.ones(3))), strict=True):
        twin.grad = grad
        make([twin]).step()
    assert torch.equal(*twins)


@KERNEL.marks[0]
def test_a_compiled_step_refuses_a_negative_view_when_it_runs() -> None:
    """The graph cannot ask; torch does when it calls the operator, in its own words."""
    number, count = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0)
    for params, buffers in (
        ([negative(torch.ones(3))], [torch.ones(3)]),
        ([torch.ones(3)], [negative(torch.ones(3))]),
    ):
        with pytest.raises(RuntimeError, match="negation inputs"):
            torch.ops.lpsgd.step(
                params, [torch.ones(3)], buffers, number * 6, -number, number, 0.9, 1e-8, "", count
            )
