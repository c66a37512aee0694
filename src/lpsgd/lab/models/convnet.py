"""A small convolutional network that ranks optimizers in a quarter of a minute."""

from __future__ import annotations

from torch import nn

from lpsgd.lab.errors import UserError
from lpsgd.lab.models.common import initialize_convolutions


def convnet(input_shape: tuple[int, ...], classes: int, width: int) -> nn.Sequential:
    """Four 3 x 3 convolutions with batch norm, of 1, 2, 4 and 4 x width channels; a linear layer.

    The image is halved after each of the first two; the last features are averaged over it.
    """
    if min(input_shape[1:]) < 4:
        raise UserError(f"convnet halves images twice: needs 4 x 4, got {input_shape}")
    model = nn.Sequential(
        *_block(input_shape[0], width),
        nn.MaxPool2d(2),
        *_block(width, 2 * width),
        nn.MaxPool2d(2),
        *_block(2 * width, 4 * width),
        *_block(4 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )
    initialize_convolutions(model)
    return model


def _block(channels: int, width: int) -> tuple[nn.Module, ...]:
    # no bias: batch norm takes the mean away
    convolution = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)
