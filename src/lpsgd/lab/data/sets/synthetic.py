"""Made-up images of any shape, for load tests: noise around one random picture for each class."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lpsgd.lab.data.augment import Normalization
from lpsgd.lab.data.loaders import Data, DataRequest, ImageSet, image_data, read_count
from lpsgd.lab.data.seeding import generator
from lpsgd.lab.errors import UserError

TRAIN_EXAMPLES = 1024
TEST_EXAMPLES = 256


def load(
    request: DataRequest, *, shape: Sequence[int] | str = (3, 32, 32), classes: int = 10
) -> Data:
    """As many examples as the sizes ask for (default 1024 and 256), the same for every seed."""
    size = _shape(shape)
    classes = read_count("classes", classes, least=2)
    train_count = (request.train_size or TRAIN_EXAMPLES) + request.val_size
    train = _images("train", train_count, size, classes)
    test = _images("test", request.test_size or TEST_EXAMPLES, size, classes)
    normalize = Normalization(mean=(0.5,) * size[0], std=(0.25,) * size[0])
    return image_data(request, train, test, normalize, classes=classes)


def _shape(shape: Sequence[int] | str) -> tuple[int, int, int]:
    try:
        parts = shape.split("x") if isinstance(shape, str) else shape
        channels, height, width = (int(part) for part in parts)
    except ValueError:
        channels = height = width = 0
    if min(channels, height, width) < 1:
        raise UserError(f"shape is {shape!r}; allowed: channels, height, width, such as 3x32x32")
    return channels, height, width


def _images(split: str, count: int, shape: tuple[int, int, int], classes: int) -> ImageSet:
    channels, height, width = shape
    labels = torch.arange(count) % classes
    size = (height, width, channels)
    prototypes = torch.randint(
        0, 128, (classes, *size), dtype=torch.uint8, generator=generator("synthetic", "prototypes")
    )
    noise = torch.randint(
        0, 128, (count, *size), dtype=torch.uint8, generator=generator("synthetic", split)
    )
    return ImageSet(noise.add_(prototypes[labels]), labels)
