"""scikit-learn's handwritten digits: real images on a machine without a network."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lpsgd.lab.data.augment import Normalization
from lpsgd.lab.data.loaders import Data, ImageSet, Request, image_data
from lpsgd.lab.data.seeding import generator
from lpsgd.lab.data.subsets import stratified

TEST_EXAMPLES = 360  # a fifth of the 1797, in the proportions of the classes, fixed for ever
NORMALIZATION = Normalization(mean=(0.3044,), std=(0.3231,))  # of the 1437 training images


def load(request: Request) -> Data:
    """The digits as 1 x 32 x 32 images. A mirrored digit is not a digit, so there is no flip."""
    train, test = train_and_test()
    return image_data(request, train, test, NORMALIZATION, classes=10, flip=False)


def train_and_test() -> tuple[ImageSet, ImageSet]:
    """The 1437 training and 360 test images, the same on every machine and for every seed."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = torch.from_numpy(bunch.images).float().unsqueeze(1)  # (1797, 1, 8, 8), 0 to 16
    # By a factor of 4 all bilinear weights are multiples of 1/64: exact, hence the same everywhere.
    large = F.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
    images = (large * (255 / 16)).round().to(torch.uint8).permute(0, 2, 3, 1)
    everything = ImageSet(images, torch.from_numpy(bunch.target).long())

    tested = stratified(everything.labels, TEST_EXAMPLES, generator("digits", "test"))
    is_test = torch.zeros(len(everything.labels), dtype=torch.bool)
    is_test[tested] = True
    trained = torch.nonzero(~is_test).squeeze(1)
    return everything.take(trained), everything.take(tested)
