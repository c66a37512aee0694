"""LPMuon on sharded parameters: the steps of one process, saved and loaded by torch's DCP."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from lpsgd import LinearAlpha, LPMuon, param_groups
from tests.process_group import fully_shard, in_processes
from tests.test_dtensor import assert_close, cutters, whole
from tests.torch_versions import FSDP2_ON_A_CPU, TORCH, needs_fsdp2_on_a_cpu

# Even and uneven parts, an empty one (one row, two processes), vectors, a scalar and a kernel.
SHAPES = [(6, 5), (7, 3), (1, 5), (5,), (), (5, 2, 3, 3)]
STEPS = 4
CASES: list[dict[str, Any]] = [
    {},
    {"cautious": False, "normalize_rows": False, "nesterov": False},
    {"p": 5.0, "exact": False},
    {"p": LinearAlpha(-0.3, 0.3, total_steps=STEPS), "maximize": True},
    {"foreach": True, "momentum": 0.0},
    {"capturable": True, "p": 4.0, "lr": torch.tensor(0.1, dtype=torch.float64)},
    {"dtype": torch.bfloat16},
]


def trajectory(case: dict[str, Any], cut: Any) -> list[Tensor]:
    """The parameters after a few steps, each made by ``cut`` and put together again."""
    settings = {"lr": 0.1, "weight_decay": 0.1, **case}
    dtype = settings.pop("dtype", torch.float64)
    draw = torch.Generator().manual_seed(0)

    def numbers(shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=draw, dtype=torch.float64) * scale
        return cut(values.to(dtype))

    params = [nn.Parameter(numbers(shape)) for shape in SHAPES]
    optimizer = LPMuon(params, **settings)
    for step in range(STEPS):
        for param, shape in zip(params, SHAPES, strict=True):
            param.grad = numbers(shape, 10.0 ** (step - 2))
        if step == 1:
            params[0].grad = torch.zeros_like(params[0])
            params[5].grad = None
        optimizer.step()
    return [whole(param.detach()) for param in params]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.inner = nn.Linear(6, 7)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.inner(self.words(tokens)).relu()))
        return logits


def a_model() -> Net:
    torch.manual_seed(0)
    return Net().double()


def an_optimizer(model: nn.Module, *, rows: bool) -> LPMuon:
    p = LinearAlpha(total_steps=2 * STEPS)
    groups = param_groups(model, 0.1, muon=True)
    return LPMuon(groups, lr=0.05, p=p, normalize_rows=rows)


def train(model: nn.Module, optimizer: LPMuon, steps: range) -> None:
    """Each process sees all of the data, so that the mean of the gradients is the gradient."""
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        x = torch.randint(11, (9,), generator=draw)
        y = torch.randint(3, (9,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [whole(param.detach()) for param in model.parameters()]


def resumed_by_dcp(folder: str, rows: bool) -> tuple[list[Tensor], list[Tensor]]:
    """FSDP2 straight through, and stopped, saved by parts and loaded into a new model."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def sharded() -> tuple[nn.Module, LPMuon]:
        model = fully_shard(a_model(), mesh=mesh)
        return model, an_optimizer(model, rows=rows)

    model, optimizer = sharded()
    train(model, optimizer, range(STEPS))
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
    train(model, optimizer, range(STEPS, 2 * STEPS))

    again, resumed = sharded()
    of_model, of_optimizer = get_state_dict(again, resumed)
    dcp.load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
    set_state_dict(again, resumed, model_state_dict=of_model, optim_state_dict=of_optimizer)
    train(again, resumed, range(STEPS, 2 * STEPS))
    return weights(model), weights(again)


def everything(folders: list[str]) -> dict[str, Any]:
    """What the tests below look at, found in one process group."""
    cut = cutters()
    found: dict[str, Any] = {way: [trajectory(c, cut[way]) for c in CASES] for way in cut}
    if TORCH >= FSDP2_ON_A_CPU:
        pairs = zip(folders, (True, False), strict=True)
        found["resumed"] = [resumed_by_dcp(folder, rows) for folder, rows in pairs]
    param = nn.Parameter(cut["rows"](torch.ones(7, 3)))
    param.grad = torch.ones_like(param)
    optimizer = LPMuon([param])
    optimizer.step()
    state = optimizer.state[param]
    found["parts"] = {name: tuple(local(state[name]).shape) for name in state}
    return found


def local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@pytest.fixture(scope="module")
def processes() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        return in_processes(2, everything, [a, b])


@pytest.mark.parametrize("way", ["rows", "columns", "copies"])
def test_trajectories_are_those_of_one_process(processes: list[dict[str, Any]], way: str) -> None:
    for number, case in enumerate(CASES):
        expected = trajectory(case, lambda t: t)
        for found in processes:
            assert_close(found[way][number], expected, (way, case))


@needs_fsdp2_on_a_cpu
@pytest.mark.parametrize("rows", [True, False])
def test_fsdp2_trains_as_one_process_and_resumes_exactly(
    processes: list[dict[str, Any]], rows: bool
) -> None:
    model = a_model()
    train(model, an_optimizer(model, rows=rows), range(2 * STEPS))
    for found in processes:
        straight, resumed = found["resumed"][0 if rows else 1]
        assert_close(straight, weights(model), rows)
        assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


def test_momentum_is_sharded_and_row_statistics_are_whole(
    processes: list[dict[str, Any]],
) -> None:
    parts = [found["parts"] for found in processes]
    assert [part["momentum_buffer"] for part in parts] == [(4, 3), (3, 3)]
    assert [part["second_moment"] for part in parts] == [(7, 1), (7, 1)]
