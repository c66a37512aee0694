"""FSDP2: parameters, gradients and momentum sharded over processes, and saved by parts.

    torchrun --nproc-per-node 2 examples/fsdp2.py [--folder checkpoint] [--steps 20]

The steps are those of one process, norms over whole tensors (normalize="rms") included. Given again
with the same folder, it resumes; with another number of processes too. Needs torch 2.6.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from lpsgd import LPSGDM, param_groups


def make(steps: int, device: torch.device) -> tuple[nn.Module, LPSGDM]:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(16, 1)).to(device)
    for layer in layers:
        fully_shard(layer)  # gathered, and freed again, layer by layer
    fully_shard(model)
    # after sharding: the optimizer holds this process's parts
    groups = param_groups(model, weight_decay=0.01)
    return model, LPSGDM(groups, lr=1e-2, total_steps=steps, normalize="rms")


def train(folder: Path, steps: int, stop: int | None = None) -> float:
    """Train to step ``stop``, from the checkpoint if there is one; the last loss."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if cuda else "cpu"
    model, optimizer = make(steps, torch.device(device))
    first = 0
    if (folder / ".metadata").exists():
        of_model, of_optimizer = get_state_dict(model, optimizer)
        state = {"model": of_model, "optimizer": of_optimizer, "step": 0}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
        first = state["step"]
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(first, stop or steps):
        whole = torch.randn(12, 16, generator=torch.Generator().manual_seed(step)).to(device)
        x = whole.chunk(size)[rank]  # each process has its rows; FSDP averages the gradients
        loss = (model(x) - x[:, :1].tanh()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save(
        {"model": of_model, "optimizer": of_optimizer, "step": stop or steps}, checkpoint_id=folder
    )
    mean = loss.detach()
    dist.all_reduce(mean)
    return mean.item() / size


def main() -> None:
    parser = argparse.ArgumentParser(description="LPSGDM with FSDP2")
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stop", type=int, help="end after this step, as a time limit would")
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    loss = train(options.folder, options.steps, options.stop)
    if dist.get_rank() == 0:
        print(f"loss {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
