"""What the convolutional networks share."""

from __future__ import annotations

from torch import nn

SMALL = 64
"""Images up to this height and width get the form without early down-sampling."""


def is_small(input_shape: tuple[int, ...]) -> bool:
    """Whether images of (channels, height, width) get the 32 x 32 form of a network."""
    return max(input_shape[1:]) <= SMALL


def initialize_convolutions(model: nn.Module) -> None:
    """Kaiming's normal initialisation by fan-out, as in the published networks."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
