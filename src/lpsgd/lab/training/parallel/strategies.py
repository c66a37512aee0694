"""How a network is spread over the processes of a run: replicated (DDP) or sharded (FSDP2).

Either way one step on N processes is the step of one process on the whole batch, to rounding.
Batch norm is no exception: its means and variances are taken over the rows of all processes. Nor
is dropout, whose masks are those of the whole batch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lpsgd._dtensor import is_sharded


def replicate(model: nn.Module, device: torch.device, example: Tensor) -> DistributedDataParallel:
    """The network with torch's DDP around it, which averages gradients over the processes.

    DDP fixes the order in which it sends gradients after the first step. The order decides
    rounding with three processes or more, so a run that resumes from a checkpoint would differ in
    the last bit from one that never stopped: a step on ``example`` is taken here and forgotten.
    """
    network = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        forward_sync_buffers=False,  # they are equal: see `share_batch_norms`
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(2):  # the order is fixed when the second one begins
        network(example).float().square().mean().backward()
    model.load_state_dict(before)
    model.zero_grad(set_to_none=True)
    return network


def shard(model: nn.Module, device: torch.device) -> None:
    """Shard the parameters, one part for each process, by torch's FSDP2, block by block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # what is gathered for a forward pass at one time: residual blocks, else layers
    for block in getattr(model, "blocks", model).children():
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def averaging(network: Any, *, wanted: bool) -> AbstractContextManager[object]:
    """A context for forward and backward in which gradients are averaged, or kept for the next."""
    if isinstance(network, DistributedDataParallel) and not wanted:
        return network.no_sync()
    if hasattr(network, "set_requires_gradient_sync"):  # FSDP2, whose import takes long
        network.set_requires_gradient_sync(wanted)
    return nullcontext()


def unshard(tensor: Any) -> Tensor:
    """A sharded tensor put together, the same on every process; a plain one as it is."""
    found: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return found


def shard_like(value: Any, like: Any) -> Any:
    """This process's part of an unsharded tensor, if ``like`` is sharded and of its shape."""
    if not is_sharded(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    # every process has all of the value: nothing is sent
    there = value.to(like.device)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)


def load_model(model: nn.Module, state: dict[str, Any]) -> None:
    """Load an unsharded state dict into a model that may be sharded."""
    own = model.state_dict()
    model.load_state_dict({name: shard_like(value, own.get(name)) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an unsharded state dict into an optimizer whose parameters may be sharded."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(map(is_sharded, parameters)):
        numbers = [i for group in state["param_groups"] for i in group["params"]]
        own = {
            number: {key: shard_like(value, p) for key, value in state["state"][number].items()}
            for number, p in zip(numbers, parameters, strict=True)
            if number in state["state"]
        }
        state = {**state, "state": own}
    optimizer.load_state_dict(state)


# ---------------------------------------------------------------------- batch norm


def share_batch_norms(model: nn.Module, device: torch.device) -> nn.Module:
    """Make batch norms take their statistics over the rows of all processes."""
    if device.type == "cuda":
        shared: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return shared
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SharedBatchNorm2d
    return model


class SharedBatchNorm2d(nn.BatchNorm2d):
    """``nn.SyncBatchNorm`` for the CPU, where torch has none. Processes may have unequal rows."""

    def forward(self, x: Tensor) -> Tensor:
        """In training: normalise by mean and variance over the rows of all processes."""
        if not self.training:
            return super().forward(x)
        dtype, x = x.dtype, x.float() if x.dtype.itemsize < 4 else x  # sums of many
        channels = x.shape[1]
        count = _total(x.new_tensor(x.numel() // channels))
        shape = (1, channels, 1, 1)
        mean = _total(x.sum((0, 2, 3))) / count
        centred = x - mean.view(shape)
        variance = _total(centred.square().sum((0, 2, 3))) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale.view(shape) + self.bias.view(shape)).to(dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)


# ---------------------------------------------------------------------- dropout


def share_dropouts(model: nn.Module) -> None:
    """Make dropouts draw for the rows of all processes, each taking what falls on its own.

    All processes have the same generator, because one of them writes it into the checkpoint: if
    each drew for its own rows alone, all would drop the same places.
    """
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = SharedDropout


class SharedDropout(nn.Dropout):
    """``nn.Dropout`` on a part of the rows: the same as on all of them."""

    def forward(self, x: Tensor) -> Tensor:
        """In training: drop what one process would drop of these rows."""
        if not self.training or not 0 < self.p < 1:
            return super().forward(x)
        counts = [x.new_zeros((), dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, x.new_tensor(len(x), dtype=torch.int64))
        rows = [int(count) for count in counts]
        kept = x.new_empty(sum(rows), *x.shape[1:]).bernoulli_(1 - self.p)
        mine: Tensor = torch.split(kept, rows)[dist.get_rank()]
        return x * (mine / (1 - self.p))


# ---------------------------------------------------------------------- sums over processes


class _Total(torch.autograd.Function):
    """The sum over the processes; what one of them does with it is felt by all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def _total(x: Tensor) -> Tensor:
    found: Tensor = _Total.apply(x)  # type: ignore[no-untyped-call]
    return found
