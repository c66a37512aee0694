"""VGG-11 (Simonyan and Zisserman 2015) with batch norm, and as published without."""

from __future__ import annotations

from torch import Tensor, nn

from lpsgd.lab.errors import UserError
from lpsgd.lab.models.common import initialize_convolutions, is_small

# channels of each convolution in units of the width, "pool" halves the image
PLAN: tuple[int | str, ...] = (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool")


class VGG(nn.Module):
    """Eight convolutions, then one linear layer (small images) or the published three."""

    def __init__(
        self, input_shape: tuple[int, ...], classes: int, width: int, *, batch_norm: bool = True
    ) -> None:
        super().__init__()
        if min(input_shape[1:]) < 32:
            raise UserError(f"vgg11 halves images five times: needs 32 x 32, got {input_shape}")
        self.features = _features(input_shape[0], width, batch_norm=batch_norm)
        if is_small(input_shape):
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.classifier = nn.Sequential(nn.Linear(8 * width, classes))
        else:
            hidden = 64 * width
            self.pool = nn.AdaptiveAvgPool2d(7)
            self.classifier = nn.Sequential(
                nn.Linear(8 * width * 7 * 7, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(),
                nn.Linear(hidden, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(),
                nn.Linear(hidden, classes),
            )
        initialize_convolutions(self)
        for layer in self.classifier:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0, 0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, channels, height, width)."""
        logits: Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def _features(channels: int, width: int, *, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for item in PLAN:
        if isinstance(item, str):
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, item * width, 3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(item * width))
        layers.append(nn.ReLU(inplace=True))
        channels = item * width
    return nn.Sequential(*layers)


def vgg11(input_shape: tuple[int, ...], classes: int, width: int) -> VGG:
    """VGG-11 with batch norm."""
    return VGG(input_shape, classes, width)


def vgg11_plain(input_shape: tuple[int, ...], classes: int, width: int) -> VGG:
    """VGG-11 as published, without batch norm."""
    return VGG(input_shape, classes, width, batch_norm=False)
