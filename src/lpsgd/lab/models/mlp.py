"""A multilayer perceptron, the smallest network that learns."""

from __future__ import annotations

from math import prod

from torch import nn


def mlp(input_shape: tuple[int, ...], classes: int, width: int) -> nn.Sequential:
    """Two hidden layers of 4 x width units on the flattened image."""
    hidden = 4 * width
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
