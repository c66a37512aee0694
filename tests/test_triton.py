"""The Triton kernels, run by Triton's interpreter on a CPU, against formulas in float64."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lpsgd._compat import TRITON
from lpsgd._descent import _single_tensor
from tests.oracles import lp

pytestmark = pytest.mark.skipif(
    not TRITON or importlib.util.find_spec("triton") is None,
    reason="needs torch 2.7, and pip install triton",
)
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SIZES = [(1,), (7,), (1023,), (1024,), (3, 683)]
SETTINGS: dict[str, Any] = {"step": -0.01, "keep": 0.999, "momentum": 0.9, "eps": 1e-8}


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """The module, whose kernels Triton interprets (see conftest.py)."""
    return importlib.import_module("lpsgd._triton")


def tensors(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None], sizes: Any = SIZES
) -> tuple[list[Tensor], list[Tensor], list[Tensor] | None]:
    """Parameters, gradients of many sizes, momenta."""
    param, grad, momentum = dtypes
    generator = torch.Generator().manual_seed(0)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator)

    params = [normal(shape).to(param) for shape in sizes]
    grads = [(normal(shape) * 10 ** normal(shape)).to(grad) for shape in sizes]
    momenta = [normal(shape).to(momentum) for shape in sizes] if momentum else None
    return params, grads, momenta


def copies(some: list[Tensor] | None) -> list[Tensor] | None:
    return None if some is None else [tensor.clone() for tensor in some]


def array(tensor: Tensor) -> Any:
    return tensor.double().numpy()


@pytest.mark.parametrize("p", [2.0, 3.5, math.inf])
@pytest.mark.parametrize("normalize", [None, "rms", "dual"])
@pytest.mark.parametrize(
    "dtypes",
    [(F32, F32, F32), (F32, F32, None), (BF16, BF16, F32), (F16, F16, F32), (F32, BF16, F16)],
    ids=str,
)
def test_a_step_is_the_formula(kernels: ModuleType, dtypes: Any, normalize: Any, p: float) -> None:
    params, grads, momenta = tensors(dtypes)
    before, held = copies(params), copies(momenta)
    assert before is not None
    kernels.triton_step(params, grads, momenta, p=p, normalize=normalize, **SETTINGS)
    for index, param in enumerate(params):
        x = array(grads[index])
        if momenta is not None and held is not None:
            m = array(held[index])
            x = m + 0.1 * (x - m)
            largest = np.abs(x).max()
            precision = 2e-7 if dtypes[2] == F32 else 1e-3
            assert np.abs(array(momenta[index]) - x).max() <= precision * (1 + 2 * largest)
        move = -0.01 * lp.direction(x, p, 1e-8, normalize)
        expected = 0.999 * array(before[index]) + move
        step = torch.finfo(dtypes[0]).eps if dtypes[0] != F32 else 2e-7
        bound = 0.51 * step * np.abs(expected) + 4e-6 * np.abs(move) + 1e-7
        assert (np.abs(array(param) - expected) <= bound + step * (dtypes[0] == F32)).all()


@pytest.mark.parametrize("dtypes", [(BF16, BF16, BF16), (F32, F32, BF16)], ids=str)
def test_bfloat16_momentum_is_rounded_to_the_bits_of_the_loop(
    kernels: ModuleType, dtypes: Any
) -> None:
    ours, grads, held = tensors(dtypes)
    loop, expected = copies(ours), copies(held)
    assert loop is not None
    settings = {"p": 2.0, "normalize": None, **SETTINGS, "count": 5}
    kernels.triton_step(ours, grads, held, **settings)
    _single_tensor(loop, grads, expected, differentiable=False, **settings)
    assert held is not None
    assert expected is not None
    different = [(a != b).double().mean() for a, b in zip(held, expected, strict=True)]
    assert max(different) < 2e-3  # where the float32 before it differs in the last bit
    torch.testing.assert_close(ours, loop, rtol=2**-7, atol=1e-6)


def test_many_tensors_find_their_blocks(kernels: ModuleType) -> None:
    sizes = [(1 + 37 * i % 1500,) for i in range(21)]
    params, grads, momenta = tensors((F32, F32, F32), sizes)
    alone, own = copies(params), copies(momenta)
    assert alone is not None
    assert own is not None
    settings = {"p": 4.0, "normalize": "rms", **SETTINGS}
    kernels.triton_step(params, grads, momenta, **settings)
    for param, grad, m in zip(alone, grads, own, strict=True):
        kernels.triton_step([param], [grad], [m], **settings)
    assert all(map(torch.equal, params, alone))


def test_numbers_in_tensors_give_the_same_step(kernels: ModuleType) -> None:
    ends = []
    for kind in (float, torch.tensor):
        params, grads, momenta = tensors((F32, F32, BF16))
        numbers = {"p": kind(4.0), "step": kind(-0.01), "keep": kind(0.5)}
        count = torch.tensor(3) if kind is torch.tensor else 3
        kernels.triton_step(
            params, grads, momenta, momentum=0.9, eps=1e-8, normalize="dual", count=count, **numbers
        )
        ends.append(params)
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("normalize", [None, "rms", "dual"])
def test_zero_stays_and_what_is_not_a_number_shows(kernels: ModuleType, normalize: Any) -> None:
    params = [torch.ones(5), torch.ones(5)]
    grads = [torch.zeros(5), torch.tensor([1.0, math.nan, 1.0, 1.0, 1.0])]
    settings = {**SETTINGS, "keep": 1.0}
    kernels.triton_step(params, grads, None, p=4.0, normalize=normalize, **settings)
    assert torch.equal(params[0], torch.ones(5))
    assert params[1][1].isnan()
    assert params[1].isnan().all() == (normalize is not None)


def test_only_one_module_imports_triton() -> None:
    source = Path(importlib.import_module("lpsgd").__file__).parent
    users = [
        p.name for p in source.rglob("*.py") if re.search(r"^\s*import triton", p.read_text(), re.M)
    ]
    assert users == ["_triton.py"]


@pytest.mark.slow
def test_the_kernels_compile_without_spills(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "benchmarks/triton_code.py"],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| sm_(\d+) \| (\w+)[^|]*\| *(\d+) \| *(\d+) \|$", done.stdout, re.M)
    assert {row[0] for row in rows} == {"80", "90"}
    assert all(int(spilled) == 0 and int(registers) <= 64 for *_, registers, spilled in rows)
