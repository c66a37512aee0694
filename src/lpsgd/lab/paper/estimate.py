"""What a list of runs costs: FLOPs, hours on this machine after a short timing, on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError
from lpsgd.lab.paper.scales import Scale
from lpsgd.lab.plan import Task

if TYPE_CHECKING:
    from torch import nn

# Peak FLOP/s in single precision without tensor cores, from the makers' data sheets.
GPUS = {
    "T4": 8.1e12,
    "V100": 15.7e12,
    "A100": 19.5e12,
    "L4": 30.3e12,
    "RTX3090": 35.6e12,
    "H100": 66.9e12,
    "RTX4090": 82.6e12,
}
USED = 0.5
"""The share of the peak that training is assumed to reach (ResNet-50 on a V100: 0.56)."""


@dataclass(frozen=True)
class Shape:
    """What decides the cost of one image."""

    model: str
    width: int | None
    input_shape: tuple[int, int, int]
    classes: int

    def create(self) -> nn.Module:
        """The network."""
        from lpsgd.lab import models

        return models.create(
            self.model, input_shape=self.input_shape, classes=self.classes, width=self.width
        )


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs for one image: a multiplication and an addition are two."""

    forward: int
    training: int
    """Forward and backward."""
    hessian: int
    """One Hessian-vector product: forward, backward, and the backward of that."""


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a list of runs."""

    runs: int
    flops: float
    gpu_hours: float
    machine_hours: float | None
    """None where nothing was timed."""


def check_gpu(name: str) -> str:
    """The name of a known GPU."""
    if name not in GPUS:
        raise UserError(unknown_name("GPU", name, GPUS))
    return name


def estimate(
    tasks: Sequence[Task],
    scale: Scale,
    *,
    hessian_images: Sequence[int] = (),
    gpu: str = "A100",
    seconds_per_image: Callable[[Shape], float] | None = None,
    jobs: int = 1,
) -> CostEstimate:
    """Add up the runs.

    ``hessian_images`` are those that Hessian products go through, for each run. Times go by FLOPs:
    a test image costs its forward pass, a third of a training image's time.
    """
    flops, seconds = 0.0, 0.0
    for task, measured in zip(tasks, hessian_images or [0] * len(tasks), strict=True):
        shape, trained, tested = _work(task, scale)
        cost = count_flops(shape)
        work = cost.training * trained + cost.forward * tested + cost.hessian * measured
        flops += work
        if seconds_per_image is not None:
            seconds += seconds_per_image(shape) * work / cost.training
    hours = None if seconds_per_image is None else seconds / jobs / 3600
    return CostEstimate(len(tasks), flops, flops / (GPUS[gpu] * USED) / 3600, hours)


def _work(task: Task, scale: Scale) -> tuple[Shape, int, int]:
    """The shape of a run, and how many images it trains on and tests."""
    recipe = task.recipe
    place = next(p for p in scale.stand_ins.values() if p.dataset == recipe.dataset)
    steps = place.train // recipe.batch_size
    shape = Shape(recipe.model, recipe.width, place.shape, place.classes)
    trained = recipe.epochs * steps * recipe.batch_size
    return shape, trained, recipe.epochs * place.test


@cache
def count_flops(shape: Shape) -> ModelFlops:
    """The products of convolutions and linear layers for one image, from the shapes alone.

    A layer y = Wx has one product forward and two backward, by W and by x; the derivative of those
    has six: two each from the gradients by W and by x, and the layer's own two once more. The first
    layer needs no gradient by its input, so it lacks one of the two and four of the six.

    ResNet-50 at 224 x 224 has 4.1 GMAC (He et al. 2016; torchvision lists 4.09):

    >>> round(count_flops(Shape("resnet50", None, (3, 224, 224), 1000)).forward / 2e9, 2)
    4.09
    """
    import torch
    from torch import Tensor, nn

    every = first = 0

    def count(layer: nn.Conv2d | nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal every, first
        flops = 2 * layer.weight[0].numel() * output[0].numel()
        every += flops
        first += 0 if inputs[0].requires_grad else flops

    with torch.device("meta"):
        network = shape.create()
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(count)
        network(torch.empty(2, *shape.input_shape))  # batch norm wants more than one image
    training = 3 * every - first
    return ModelFlops(every, training, training + 6 * every - 4 * first)


@cache
def time_one(shape: Shape) -> float:
    """Seconds to train on one image of this shape on this machine, from two batches of up to 128.

    On a CPU this is processor time of one thread, so that a busy machine does not look slow.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from lpsgd.lab.paper.theory.problems import one_thread
    from lpsgd.lab.training.numerics import choose_device

    device = choose_device("auto")
    pixels = shape.input_shape[1] * shape.input_shape[2]
    images = max(2, min(128, 2**17 // pixels))
    model = shape.create().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(images, *shape.input_shape, device=device)
    targets = torch.zeros(images, dtype=torch.long, device=device)

    def step() -> float:
        start = _clock(device.type)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        return _clock(device.type) - start

    with one_thread():
        first = step()  # also sets up the kernels; good enough where it takes long
        return (first if first > 2 else min(step(), step())) / images


def _clock(kind: str) -> float:
    if kind == "cpu":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()
