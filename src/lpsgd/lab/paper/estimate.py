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
    from lpsgd.lab.paper.flops import ModelFlops

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
        cost = _flops(shape)
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
def _flops(shape: Shape) -> ModelFlops:
    from lpsgd.lab.paper.flops import count

    return count(
        shape.model, input_shape=shape.input_shape, classes=shape.classes, width=shape.width
    )


@cache
def time_one(shape: Shape) -> float:
    """Seconds to train on one image of this shape on this machine, from one or two small batches.

    On a CPU this is processor time of one thread, so that a busy machine does not look slow.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from lpsgd.lab import models
    from lpsgd.lab.training.numerics import choose_device

    device = choose_device("auto")
    pixels = shape.input_shape[1] * shape.input_shape[2]
    images = max(2, min(32, 2**16 // pixels))
    model = models.create(
        shape.model, input_shape=shape.input_shape, classes=shape.classes, width=shape.width
    ).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(images, *shape.input_shape, device=device)
    targets = torch.zeros(images, dtype=torch.long, device=device)

    def step() -> float:
        start = _clock(device.type)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        return _clock(device.type) - start

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first = step()  # also sets up the kernels; good enough where it takes long
        return (first if first > 2 else min(step(), step())) / images
    finally:
        torch.set_num_threads(threads)


def _clock(kind: str) -> float:
    if kind == "cpu":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()
