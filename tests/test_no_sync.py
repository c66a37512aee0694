"""A step on a GPU never makes the host wait, and sends the device one small copy at most.

No GPU is needed: FakeTensor takes torch's way for CUDA tensors, operator by operator, and computes
nothing. Whatever looks at a value raises, as ``.item()`` does, and what moves is counted.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lpsgd import LPSGD, LPSGDM, CosineP, LPMuon, _descent

COSINE = CosineP(6, total_steps=9)
SHAPES = ((80, 60), (80, 60), (5,))
# What makes the host wait for a GPU although it gives nothing back that a FakeTensor would refuse.
WAITING = ("linalg_eigh", "linalg_svd", "linalg_check_errors", "equal", "is_nonzero", "unique")

Make = Callable[[list[Tensor]], torch.optim.Optimizer]
# As numbers on the host, and with capturable in tensors on the device.
CASES: dict[str, Make] = {
    "LPSGD": lambda params: LPSGD(params, p=COSINE, capturable=True),
    "LPSGDM": lambda params: LPSGDM(params, p=COSINE, weight_decay=0.1, capturable=True),
    "rms": lambda params: LPSGDM(params, p=COSINE, normalize="rms", capturable=True),
    "dual": lambda params: LPSGDM(params, p=COSINE, normalize="dual", capturable=True),
    "bfloat16": lambda params: LPSGDM(
        params, p=COSINE, state_dtype=torch.bfloat16, capturable=True
    ),
    "int8": lambda params: LPSGDM(params, p=COSINE, state_dtype=torch.int8, capturable=True),
    "loop": lambda params: LPSGDM(params, p=COSINE, foreach=False, capturable=True),
    "foreach, by numbers": lambda params: LPSGDM(params, p=COSINE),
    "rms, by numbers": lambda params: LPSGDM(params, p=COSINE, normalize="rms"),
    "dual, by numbers": lambda params: LPSGDM(params, p=COSINE, normalize="dual"),
    "bfloat16, by numbers": lambda params: LPSGDM(params, p=COSINE, state_dtype=torch.bfloat16),
    "int8, by numbers": lambda params: LPSGDM(params, p=COSINE, state_dtype=torch.int8),
    "LPMuon": lambda params: LPMuon(params, p=COSINE, weight_decay=0.1, capturable=True),
    "LPMuon, by numbers": lambda params: LPMuon(params, p=COSINE),
}
FUSED: dict[str, tuple[int, Make]] = {  # and how many kernels a step starts
    "fused": (1, lambda params: LPSGDM(params, p=COSINE, fused=True)),
    "LPSGD": (1, lambda params: LPSGD(params, p=COSINE, fused=True, capturable=True)),
    "lr in a tensor": (1, lambda params: LPSGDM(params, lr_on(params), p=COSINE, fused=True)),
    "bfloat16": (
        1,
        lambda params: LPSGDM(
            params, p=COSINE, state_dtype=torch.bfloat16, fused=True, capturable=True
        ),
    ),
    "rms": (3, lambda params: LPSGDM(params, p=COSINE, fused=True, normalize="rms")),
    "dual": (
        3,
        lambda params: LPSGDM(params, p=COSINE, fused=True, normalize="dual", capturable=True),
    ),
}


def lr_on(params: list[Tensor]) -> Tensor:
    return torch.full((), 1e-3, device=params[0].device)


class Watch(TorchDispatchMode):
    """Notes every operator that runs, and which of them move data or make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.copies: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        result = function(*args, **(kwargs or {}))
        name = str(function)
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        self.operators.append(name)
        if len(devices) > 1 and "copy" in name:
            self.copies.append(name)
        if any(waiting in name for waiting in WAITING) and devices != {"cpu"}:
            self.waits.append(name)
        return result


class WithoutCuda(TorchFunctionMode):
    """Takes operators instead of the three methods for which a torch without CUDA has no code, and
    memory that is not pinned."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        aten = torch.ops.aten
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if function is Tensor.copy_:
            return aten.copy_.default(*args, **kwargs)
        if function in (Tensor.__getitem__, Tensor.__setitem__) and args[0].device.type == "cuda":
            tensor, index = args[:2]
            if isinstance(index, Tensor):
                part = aten.index.Tensor(tensor, [index])
            elif isinstance(index, slice):
                part = aten.slice.Tensor(tensor, 0, index.start, index.stop)
            else:
                part = aten.select.int(tensor, 0, index)
            return part if len(args) == 2 else aten.copy_.default(part, args[2])
        return function(*args, **kwargs)


def second_step(make: Make, device: str, shapes: Any = SHAPES) -> Watch:
    """What a step does on the device, once the state is there."""
    watch = Watch()
    with ExitStack() as modes:
        if device == "cuda":
            # for a torch with CUDA on a machine without; before 2.7 it is not needed
            getattr(torch._C, "_ensureCUDADeviceGuardSet", lambda: None)()
            modes.enter_context(FakeTensorMode())
            modes.enter_context(WithoutCuda())
        params = [torch.empty(shape, device=f"{device}:0", requires_grad=True) for shape in shapes]
        optimizer = make(params)
        for param in params:
            param.grad = torch.empty_like(param)
        optimizer.step()
        with watch:
            optimizer.step()
    return watch


@pytest.mark.parametrize("device", ["meta", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_the_host_neither_waits_nor_sends_anything(name: str, device: str) -> None:
    watch = second_step(CASES[name], device)
    assert watch.operators
    assert not watch.copies
    assert not watch.waits


@pytest.mark.skipif(not _descent._has_triton(), reason="needs torch 2.7, and pip install triton")
@pytest.mark.parametrize("name", FUSED)
def test_triton_takes_one_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = importlib.import_module("lpsgd._triton")
    started: list[str] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            return lambda *tensors, **constants: started.append(self.name)

    for kernel in ("_partial_kernel", "_factor_kernel", "_update_kernel"):
        monkeypatch.setattr(kernels, kernel, Kernel(kernel))
    # a FakeTensor is not plain, and lies nowhere
    monkeypatch.setattr(_descent, "are_plain", lambda tensors: True)
    monkeypatch.setattr(kernels, "addresses", lambda name, tensors: [0] * len(tensors))
    launches, make = FUSED[name]
    watch = second_step(make, "cuda")
    assert len(watch.copies) == 1
    assert not watch.waits
    assert len(started) == 2 * launches


def test_a_captured_graph_copies_nothing_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replay would find other things there."""
    monkeypatch.setattr(_descent, "are_plain", lambda tensors: True)
    monkeypatch.setattr(_descent, "_has_triton", lambda: True)
    monkeypatch.setattr(_descent, "_capturing", lambda: True)
    watch = second_step(lambda ps: LPSGDM(ps, p=COSINE, fused=True, capturable=True), "cuda")
    assert any("_foreach" in name for name in watch.operators)
    assert not watch.copies
    assert not watch.waits


def test_what_inductor_compiles_is_sent_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_descent, "are_plain", lambda tensors: True)
    monkeypatch.setattr(_descent, "_has_triton", lambda: False)
    monkeypatch.setattr(_descent, "_compile", lambda: _descent._multi_tensor)
    watch = second_step(lambda params: LPSGDM(params, p=COSINE, fused=True), "cuda")
    assert watch.operators
    assert not watch.copies
    assert not watch.waits


def test_matrices_of_one_shape_are_multiplied_together() -> None:
    def products(count: int) -> list[str]:
        shapes = [(64, 32)] * count
        operators = second_step(CASES["LPMuon"], "cuda", shapes).operators
        return [name for name in operators if "mm" in name]

    assert len(products(2)) == len(products(7)) > 10
    assert sum("bmm" not in name for name in products(2)) == 1  # the fit of a handful of weights


def test_a_look_or_a_copy_would_be_seen() -> None:
    def look(params: list[Tensor]) -> torch.optim.Optimizer:
        return LPSGDM(params, lr_on(params), p=COSINE)

    with pytest.raises(DataDependentOutputException):
        second_step(look, "cuda")
    with pytest.raises(RuntimeError, match="item"):
        second_step(look, "meta")

    def copy(params: list[Tensor]) -> torch.optim.Optimizer:
        return LPSGDM(params, torch.tensor(1e-3), p=COSINE, capturable=True)

    assert second_step(copy, "meta").copies

    def wait(params: list[Tensor]) -> torch.optim.Optimizer:
        return LPMuon(params, p=COSINE, exact=True)

    assert second_step(wait, "cuda").waits


def test_every_tensor_says_where_it_lies() -> None:
    """Under ``torch.set_default_device`` what does not is made on another device."""
    for make in CASES.values():
        with torch.device("meta"):
            params = [torch.ones(shape, device="cpu", requires_grad=True) for shape in SHAPES]
            for param in params:
                param.grad = torch.ones_like(param)
            optimizer = make(params)
            optimizer.step()
            optimizer.step()
            copied = make(params)
            copied.load_state_dict(optimizer.state_dict())
            copied.step()
        assert all(param.device.type == "cpu" for param in params)
        assert all(param.isfinite().all() and (param < 1).any() for param in params)
