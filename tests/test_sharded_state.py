"""State that is spread over processes: ZeroRedundancyOptimizer, and FSDP2 saved by DCP."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from lpsgd import LPSGDM, CosineP, LPMuon
from tests.process_group import fully_shard, in_processes
from tests.torch_versions import FSDP2_ON_A_CPU, TORCH, needs_fsdp2_on_a_cpu

STEPS = 6
CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "plain": (LPSGDM, {}),
    "rms": (LPSGDM, {"normalize": "rms"}),
    "dual": (LPSGDM, {"normalize": "dual"}),
    "LPMuon": (LPMuon, {}),
    "bfloat16": (LPSGDM, {"state_dtype": torch.bfloat16}),
}
ZERO_CASES = {**CASES, "int8": (LPSGDM, {"state_dtype": torch.int8})}
# Noise of rounding depends on a tensor's place among those of its process.
ROUNDED = {"bfloat16": 2e-3, "int8": 4e-3}


def a_model() -> nn.Sequential:
    torch.manual_seed(0)
    # the first matrix is large enough to have momentum in 8 bits
    return nn.Sequential(nn.Linear(7, 600), nn.Tanh(), nn.Linear(600, 3)).double()


def settings(name: str) -> dict[str, Any]:
    return {"lr": 0.01, "p": CosineP(6, total_steps=2 * STEPS), **ZERO_CASES[name][1]}


def train(model: nn.Module, optimizer: Any, steps: range) -> list[Tensor]:
    """Steps on batches that every process has as a whole; the weights after them."""
    for step in steps:
        x = torch.randn(4, 7, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [whole(param.detach()).clone() for param in model.parameters()]


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def one_process(name: str) -> list[Tensor]:
    model = a_model()
    return train(model, ZERO_CASES[name][0](model.parameters(), **settings(name)), range(2 * STEPS))


def zero(name: str) -> dict[str, Any]:
    """ZeRO-1: each process has the state of some parameters, and sends the others what it did."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def make(model: nn.Module) -> Any:
        cls, own = ZERO_CASES[name][0], settings(name)
        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=cls, **own)

    model = a_model()
    optimizer = make(model)
    train(model, optimizer, range(STEPS))
    optimizer.consolidate_state_dict(to=0)
    held = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(held)
    saved, halfway = copy.deepcopy(held[0]), copy.deepcopy(model.state_dict())
    weights = train(model, optimizer, range(STEPS, 2 * STEPS))

    again = a_model()
    again.load_state_dict(halfway)
    resumed = make(again)
    resumed.load_state_dict(saved)
    return {
        "weights": weights,
        "resumed": train(again, resumed, range(STEPS, 2 * STEPS)),
        "held": len(optimizer.optim.state),
        "p": optimizer.param_groups[0]["p"],
    }


def fsdp2(name: str, folder: str) -> dict[str, Any]:
    """FSDP2 straight through; and stopped, saved by parts and loaded into a new model."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def make() -> tuple[nn.Module, Any]:
        model = fully_shard(a_model(), mesh=mesh)
        return model, CASES[name][0](model.parameters(), **settings(name))

    model, optimizer = make()
    train(model, optimizer, range(STEPS))
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=f"{folder}/{name}")
    weights = train(model, optimizer, range(STEPS, 2 * STEPS))

    again, resumed = make()
    of_model, of_optimizer = get_state_dict(again, resumed)
    dcp.load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=f"{folder}/{name}")
    set_state_dict(again, resumed, model_state_dict=of_model, optim_state_dict=of_optimizer)
    return {"weights": weights, "resumed": train(again, resumed, range(STEPS, 2 * STEPS))}


def everything(folder: str, sharded: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"zero": {name: zero(name) for name in ZERO_CASES}}
    if sharded:
        found["fsdp2"] = {name: fsdp2(name, folder) for name in CASES}
    return found


@pytest.fixture(scope="module")
def processes() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return in_processes(2, everything, folder, TORCH >= FSDP2_ON_A_CPU)


def assert_same(weights: list[Tensor], name: str) -> None:
    bounds = (
        {"rtol": 0, "atol": ROUNDED[name]} if name in ROUNDED else {"rtol": 1e-9, "atol": 1e-12}
    )
    torch.testing.assert_close(weights, one_process(name), **bounds)


@pytest.mark.parametrize("name", ZERO_CASES)
def test_zero_redundancy_is_one_process_and_resumes(
    processes: list[dict[str, Any]], name: str
) -> None:
    for found in processes:
        result = found["zero"][name]
        assert_same(result["weights"], name)
        assert all(map(torch.equal, result["resumed"], result["weights"]))
        assert result["p"] == CosineP(6, total_steps=2 * STEPS)(2 * STEPS - 1) == 2.0
    held = [found["zero"][name]["held"] for found in processes]
    assert sum(held) == 4
    assert max(held) < 4


@needs_fsdp2_on_a_cpu
@pytest.mark.parametrize("name", CASES)
def test_fsdp2_is_one_process_and_resumes_by_dcp(
    processes: list[dict[str, Any]], name: str
) -> None:
    for found in processes:
        result = found["fsdp2"][name]
        assert_same(result["weights"], name)
        assert all(map(torch.equal, result["resumed"], result["weights"]))
