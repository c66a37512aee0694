"""FLOPs against published figures, and the estimates that are made of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from lpsgd.curvature import CurvatureMonitor
from lpsgd.lab.errors import UserError
from lpsgd.lab.paper import estimate
from lpsgd.lab.paper.choices import read_choices
from lpsgd.lab.paper.estimate import Shape, count_flops
from lpsgd.lab.paper.protocol import Setup, all_tasks
from lpsgd.lab.paper.scales import SCALES, Scale
from lpsgd.lab.paper.targets import TARGETS


@pytest.mark.parametrize(
    ("model", "size", "classes", "gmacs"),
    [
        ("resnet50", 224, 1000, 4.09),  # torchvision's table: 4.09; He et al.: 3.8 without extras
        ("resnet18", 224, 1000, 1.81),
        ("vgg11", 224, 1000, 7.61),
        ("resnet18", 32, 10, 0.56),  # the CIFAR form
    ],
)
def test_published_figures(model: str, size: int, classes: int, gmacs: float) -> None:
    cost = count_flops(Shape(model, None, (3, size, size), classes))
    assert cost.forward / 2e9 == pytest.approx(gmacs, abs=0.01)
    # the backward pass has two products for each one forward, but for the first layer's input
    assert 2.8 * cost.forward < cost.training < 3 * cost.forward


@pytest.mark.parametrize(
    "shape",
    [
        Shape("mlp", None, (1, 8, 8), 10),
        Shape("vgg11", 16, (3, 32, 32), 10),
        Shape("resnet18", 8, (3, 32, 32), 10),
    ],
)
def test_counts_are_those_of_torchs_counter(shape: Shape) -> None:
    """torch's counter sees every operation of the three passes, and takes seconds for each."""
    images = 2
    with torch.device("meta"):
        network = shape.create()
        targets = torch.zeros(images, dtype=torch.long)
        with FlopCounterMode(display=False) as forward:
            loss = cross_entropy(network(torch.empty(images, *shape.input_shape)), targets)
        weights = list(network.parameters())
        with FlopCounterMode(display=False) as backward:
            gradient = torch.autograd.grad(loss, weights, create_graph=True)
        with FlopCounterMode(display=False) as again:
            torch.autograd.grad(gradient, weights, [torch.empty_like(w) for w in weights])
    found = count_flops(shape)
    assert found.forward == forward.get_total_flops() // images
    assert found.training - found.forward == backward.get_total_flops() // images
    # of a strided convolution's second derivative torch counts some products twice
    second = again.get_total_flops() // images
    assert found.hessian - found.training == pytest.approx(second, rel=0.04)


def test_counting_is_quick() -> None:
    """`lpsgd reproduce --list` counts seven networks before it shows anything."""
    count_flops(Shape("mlp", None, (1, 8, 8), 10))  # torch's own start
    start = time.process_time()
    count_flops(Shape("resnet50", None, (3, 224, 224), 999))
    assert time.process_time() - start < 1


def options(scale: Scale) -> Setup:
    return Setup(scale, read_choices(), Path("unused"), ("VGG-11", "ResNet-18", "ResNet-50"), 3)


def test_a_tables_estimate_is_the_sum_over_its_runs() -> None:
    tasks = all_tasks(TARGETS["table3"].plan(options(SCALES["paper"])))
    assert len(tasks) == 12
    found = estimate.estimate(
        tasks, SCALES["paper"], gpu="A100", seconds_per_image=lambda shape: 0.5, jobs=2
    )
    cost = count_flops(Shape("resnet50", None, (3, 224, 224), 1000))
    trained = 60 * (1_281_167 // 128) * 128
    assert found.flops == pytest.approx(12 * (cost.training * trained + cost.forward * 3_000_000))
    assert found.gpu_hours == pytest.approx(found.flops / 9.75e12 / 3600)
    images = trained + 3_000_000 * cost.forward / cost.training
    assert found.machine_hours == pytest.approx(12 * 0.5 * images / 2 / 3600)


def test_hessian_products_are_counted() -> None:
    """Fig. 1 of the paper: 64 steps of Lanczos from two probes, and eight products for the
    concentration on the diagonal, eleven and thirteen times."""
    target, chosen = TARGETS["fig1"], options(SCALES["paper"])
    samples = chosen.choices["fig1-samples"]
    groups = target.plan(chosen)
    images = target.hessian_images(chosen, groups)
    assert images == [136 * samples * 11, 136 * samples * 13]
    tasks = all_tasks(groups)
    trained = estimate.estimate(tasks, SCALES["paper"]).flops
    both = estimate.estimate(tasks, SCALES["paper"], hessian_images=images).flops
    costs = [
        count_flops(Shape("resnet18", None, (3, 32, 32), 10)),
        count_flops(Shape("resnet50", None, (3, 224, 224), 1000)),
    ]
    products = sum(cost.hessian * many for cost, many in zip(costs, images, strict=True))
    assert both - trained == pytest.approx(products)
    # a product is a gradient and the derivative of one
    assert all(2 * cost.training < cost.hessian < 3.5 * cost.training for cost in costs)


def test_a_measurement_takes_as_many_products_as_are_counted(tmp_path: Path) -> None:
    products = []
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    monitor = CurvatureMonitor(
        model,
        nn.CrossEntropyLoss(),
        (torch.randn(8, 3), torch.randint(0, 2, (8,))),
        tmp_path,
        probes=SCALES["smoke"].probes,
        lanczos=SCALES["smoke"].lanczos,
        stream=None,
        between=lambda: products.append(1),
    )
    monitor.measure(0)
    every_epoch = 1 + SCALES["smoke"].stand_ins["cifar10"].epochs
    target, chosen = TARGETS["fig1"], options(SCALES["smoke"])
    counted = target.hessian_images(chosen, target.plan(chosen))[0]
    assert counted == len(products) * (SCALES["smoke"].hessian_samples or 0) * every_epoch


def test_a_short_timing_is_positive_and_remembered() -> None:
    shape = Shape("mlp", 8, (1, 8, 8), 10)
    first = estimate.time_one(shape)
    assert 0 < first < 0.1
    assert estimate.time_one(shape) == first


def test_unknown_gpu() -> None:
    with pytest.raises(UserError, match="unknown GPU 'A10'.*A100"):
        estimate.check_gpu("A10")
    assert estimate.estimate([], SCALES["smoke"]).machine_hours is None
