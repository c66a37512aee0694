"""Parameters that are cut over processes move as whole ones do, whatever the norm is taken over."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from lpsgd import LPSGD, LPSGDM, CosineP
from lpsgd.geometry import gradient_density
from tests.process_group import distributed_tensor, in_processes

# With 2 and 3 processes: even and uneven parts, empty ones (fewer rows than processes), a scalar
# that all have, and convolution kernels.
SHAPES = [(6, 5), (7, 3), (2, 5), (1,), (5, 2, 3, 3), ()]
STEPS = 3

CASES = [
    {"optimizer": optimizer, "normalize": normalize, "foreach": foreach, "p": 6.0}
    for optimizer, normalize, foreach in itertools.product(
        (LPSGD, LPSGDM), (None, "rms", "dual"), (True, False)
    )
]
CASES += [
    {"optimizer": LPSGDM, "normalize": normalize, "foreach": foreach, "p": p}
    for normalize, foreach, p in itertools.product(("rms", "dual"), (True, False), (2.0, math.inf))
]
CASES += [
    {"optimizer": LPSGDM, "normalize": "rms", "p": 6.0, "dtype": torch.bfloat16},
    {"optimizer": LPSGDM, "normalize": "dual", "p": 6.0, "maximize": True, "momentum": 0.0},
    {"optimizer": LPSGDM, "normalize": "dual", "p": CosineP(8.0, total_steps=STEPS)},
]
OTHER_WAYS = CASES[-3:]


def trajectory(case: dict[str, Any], cut: Any) -> list[Tensor]:
    """The parameters after a few steps, each made by ``cut`` and put together again."""
    settings = {"lr": 0.1, "weight_decay": 0.1, **case}
    make, dtype = settings.pop("optimizer"), settings.pop("dtype", torch.float64)
    draw = torch.Generator().manual_seed(0)

    def numbers(shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=draw, dtype=torch.float64) * scale
        return cut(values.to(dtype))

    params = [torch.nn.Parameter(numbers(shape)) for shape in SHAPES]
    optimizer = make(params, **settings)
    for step in range(STEPS):
        for param, shape in zip(params, SHAPES, strict=True):
            param.grad = numbers(shape, 10.0 ** (step - 2))
        if step == 1:  # parameters without a gradient, and with one of zeros
            params[3].grad = torch.zeros_like(params[3])
            params[4].grad = None
        optimizer.step()
    return [whole(param.detach()) for param in params]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def cutters() -> dict[str, Any]:
    """The ways in which this process group can hold a tensor."""
    tensor = distributed_tensor()
    Replicate, Shard, distribute_tensor = tensor.Replicate, tensor.Shard, tensor.distribute_tensor
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        "rows": lambda t: distribute_tensor(t, mesh, [Shard(0)] if t.ndim else [Replicate()]),
        "columns": lambda t: distribute_tensor(
            t, mesh, [Shard(t.ndim - 1)] if t.ndim else [Replicate()]
        ),
        "copies": lambda t: distribute_tensor(t, mesh, [Replicate()]),
    }


def trajectories() -> dict[str, Any]:
    """What the tests below look at, found in one process group."""
    cut = cutters()
    rows = cut["rows"]
    found: dict[str, Any] = {"rows": [trajectory(case, rows) for case in CASES]}
    for way in ("columns", "copies"):
        found[way] = [trajectory(case, cut[way]) for case in OTHER_WAYS]
    # a gradient that is cut in another way than its parameter
    param = torch.nn.Parameter(rows(torch.ones(5, 4, dtype=torch.float64)))
    param.grad = cut["columns"](torch.arange(20, dtype=torch.float64).view(5, 4))
    LPSGD([param], lr=1.0, normalize="rms").step()
    found["other cut"] = whole(param.detach())
    gradients = [torch.linspace(-1, 2, 35).view(7, 5), torch.ones(2, 3)]
    found["density"] = whole(gradient_density([rows(g) for g in gradients]))
    found["parts"] = [len(rows(torch.ones(shape)).to_local()) for shape in ((7, 3), (1,))]
    try:
        LPSGDM([param], fused=True)
    except RuntimeError as error:
        found["fused"] = str(error)
    return found


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def processes(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return in_processes(request.param, trajectories)


def test_trajectories_are_those_of_one_process(processes: list[dict[str, Any]]) -> None:
    for number, case in enumerate(CASES):
        expected = trajectory(case, lambda t: t)
        for found in processes:
            assert_close(found["rows"][number], expected, case)


@pytest.mark.parametrize("way", ["columns", "copies"])
def test_so_are_those_of_other_placements(processes: list[dict[str, Any]], way: str) -> None:
    for number, case in enumerate(OTHER_WAYS):
        assert_close(processes[-1][way][number], trajectory(case, lambda t: t), case)


def test_gradients_cut_in_another_way(processes: list[dict[str, Any]]) -> None:
    param = torch.nn.Parameter(torch.ones(5, 4, dtype=torch.float64))
    param.grad = torch.arange(20, dtype=torch.float64).view(5, 4)
    LPSGD([param], lr=1.0, normalize="rms").step()
    assert_close([processes[0]["other cut"]], [param.detach()], "other cut")


def test_density_is_that_of_the_whole_gradient(processes: list[dict[str, Any]]) -> None:
    expected = gradient_density([torch.linspace(-1, 2, 35), torch.ones(6)])
    for found in processes:
        assert found["density"].item() == pytest.approx(expected.item(), rel=1e-6)


def test_parts_were_uneven_and_empty(processes: list[dict[str, Any]]) -> None:
    sizes = [found["parts"] for found in processes]
    assert len({rows for rows, _ in sizes}) == 2
    assert sorted({rows for _, rows in sizes}) == [0, 1]


def test_the_kernel_is_refused(processes: list[dict[str, Any]]) -> None:
    assert "a parameter is a DTensor" in processes[0]["fused"]


def assert_close(found: list[Tensor], expected: list[Tensor], what: object) -> None:
    for a, b in zip(found, expected, strict=True):
        scale = max(1.0, b.double().abs().max().item())
        assert (a.double() - b.double()).abs().max().item() <= 1e-10 * scale, what
