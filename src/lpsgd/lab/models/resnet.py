"""ResNet-18 and ResNet-50 (He et al. 2016), with the down-sampling in the 3 x 3 convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from lpsgd.lab.models.common import initialize_convolutions, is_small


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)); the shortcut projects where the shape changes."""

    def __init__(self, branch: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                _conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output; its shape follows from channels and stride."""
        return F.relu(self.branch(x) + self.shortcut(x), inplace=True)


def _basic(inputs: int, channels: int, stride: int) -> Residual:
    branch = nn.Sequential(
        _conv(inputs, channels, 3, stride),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        _conv(channels, channels, 3),
        nn.BatchNorm2d(channels),
    )
    return Residual(branch, inputs, channels, stride)


def _bottleneck(inputs: int, channels: int, stride: int) -> Residual:
    branch = nn.Sequential(
        _conv(inputs, channels, 1),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        _conv(channels, channels, 3, stride),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        _conv(channels, 4 * channels, 1),
        nn.BatchNorm2d(4 * channels),
    )
    return Residual(branch, inputs, 4 * channels, stride)


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, global average pooling and one linear layer."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        width: int,
        *,
        depths: Sequence[int],
        bottleneck: bool,
    ) -> None:
        super().__init__()
        self.stem = _stem(input_shape, width)
        block, expansion = (_bottleneck, 4) if bottleneck else (_basic, 1)
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            channels = width * 2**stage
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(block(inputs, channels, stride))
                inputs = channels * expansion
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, classes)
        initialize_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, channels, height, width)."""
        features = self.blocks(self.stem(images))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits


def _stem(input_shape: tuple[int, ...], width: int) -> nn.Sequential:
    if is_small(input_shape):
        return nn.Sequential(
            _conv(input_shape[0], width, 3), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
    return nn.Sequential(
        _conv(input_shape[0], width, 7, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def resnet18(input_shape: tuple[int, ...], classes: int, width: int) -> ResNet:
    """ResNet-18: two basic blocks in each stage."""
    return ResNet(input_shape, classes, width, depths=(2, 2, 2, 2), bottleneck=False)


def resnet50(input_shape: tuple[int, ...], classes: int, width: int) -> ResNet:
    """ResNet-50: bottleneck blocks."""
    return ResNet(input_shape, classes, width, depths=(3, 4, 6, 3), bottleneck=True)
