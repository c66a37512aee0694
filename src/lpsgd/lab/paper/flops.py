"""Floating-point operations of a network, counted by torch on shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from lpsgd.lab import models

_IMAGES = 2  # batch norm wants more than one


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs for one image: a multiplication and an addition are two."""

    forward: int
    training: int
    """Forward and backward."""
    hessian: int
    """One Hessian-vector product: forward, backward, and the backward of that."""

    @property
    def macs(self) -> float:
        """Multiply-accumulates of the forward pass, the unit in which papers give model sizes."""
        return self.forward / 2


def count(
    model: str, *, input_shape: tuple[int, ...], classes: int, width: int | None = None
) -> ModelFlops:
    """Count convolutions and matrix products for one image.

    ResNet-50 at 224 x 224 has 4.1 GMAC (He et al. 2016; torchvision lists 4.09):

    >>> round(count("resnet50", input_shape=(3, 224, 224), classes=1000).macs / 1e9, 2)
    4.09
    """
    with torch.device("meta"):
        network = models.create(model, input_shape=input_shape, classes=classes, width=width)
        images = torch.empty(_IMAGES, *input_shape)
        targets = torch.zeros(_IMAGES, dtype=torch.long)
        with FlopCounterMode(display=False) as forward:
            loss = cross_entropy(network(images), targets)
        weights = list(network.parameters())
        with FlopCounterMode(display=False) as backward:
            gradient = torch.autograd.grad(loss, weights, create_graph=True)
        with FlopCounterMode(display=False) as again:
            torch.autograd.grad(gradient, weights, [torch.empty_like(w) for w in weights])
    once = forward.get_total_flops() // _IMAGES
    training = once + backward.get_total_flops() // _IMAGES
    return ModelFlops(once, training, training + again.get_total_flops() // _IMAGES)
