"""scikit-learn's handwritten digits: real images on a machine without a network."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lpsgd.lab.data.augment import Normalization
from lpsgd.lab.data.loaders import Data, DataRequest, ImageSet, every_fifth_apart, image_data

NORMALIZATION = Normalization(mean=(0.3051,), std=(0.3238,))  # of the 1442 training images


def load(request: DataRequest) -> Data:
    """The digits as 1 x 32 x 32 images. A mirrored digit is not a digit, so there is no flip."""
    train, test = train_and_test()
    return image_data(request, train, test, NORMALIZATION, classes=10, flip=False)


def train_and_test() -> tuple[ImageSet, ImageSet]:
    """The 1442 training and 355 test images; every fifth image of each digit is a test image."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = torch.from_numpy(bunch.images).float().unsqueeze(1)  # (1797, 1, 8, 8), 0 to 16
    # By a factor of 4 all bilinear weights are multiples of 1/64: exact, hence the same everywhere.
    large = F.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
    images = (large * (255 / 16)).round().to(torch.uint8).permute(0, 2, 3, 1)
    return every_fifth_apart(ImageSet(images, torch.from_numpy(bunch.target).long()))
