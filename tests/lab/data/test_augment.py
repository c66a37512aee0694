"""Whole-batch augmentation against Pillow and numpy, one image at a time."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from benchmarks import training
from lpsgd.lab.data.augment import Normalization, ShiftAndFlip

CIFAR = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def pictures(count, height=32, width=32, channels=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    size = (count, height, width, channels)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=draw)


def with_pillow(image, down, right, flip, padding=4):
    """Mirror, pad with black, crop."""
    picture = Image.fromarray(image.numpy())
    width, height = picture.size
    if flip:
        picture = ImageOps.mirror(picture)
    return np.array(
        ImageOps.expand(picture, padding).crop((right, down, right + width, down + height))
    )


def test_every_corner_and_mirroring_equals_pillow():
    cases = list(itertools.product(range(9), range(9), (False, True)))
    images = pictures(20)
    index = torch.arange(len(cases)) % 20
    down, right, flip = (torch.tensor(column) for column in zip(*cases, strict=True))
    crops = ShiftAndFlip(images)(index, down, right, flip)
    for crop, i, case in zip(crops, index, cases, strict=True):
        np.testing.assert_array_equal(crop.numpy(), with_pillow(images[i], *case))


@settings(max_examples=50, deadline=None)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.integers(1, 4),
    padding=st.integers(0, 5),
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_any_shape_equals_numpy_also_when_scratch_memory_is_used_again(
    height, width, channels, padding, counts, seed
):
    images = pictures(7, height, width, channels, seed)
    crop = ShiftAndFlip(images, padding=padding)
    random = np.random.default_rng(seed)
    for count in counts:
        index = torch.from_numpy(random.integers(0, 7, count))
        down, right = torch.from_numpy(random.integers(0, 2 * padding + 1, (2, count)))
        flip = torch.from_numpy(random.integers(0, 2, count).astype(bool))
        crops = crop(index, down, right, flip)
        for k in range(count):
            image = images[index[k]].numpy()
            image = image[:, ::-1] if flip[k] else image
            edge = (padding, padding)
            padded = np.pad(image, (edge, edge, (0, 0)))
            expected = padded[down[k] : down[k] + height, right[k] : right[k] + width]
            np.testing.assert_array_equal(crops[k].numpy(), expected)


def test_random_draws_every_corner_and_both_mirrorings_equally_often():
    # pixel (y, x) holds the number 32*y + x, so a crop says where it came from
    image = torch.arange(1, 32 * 32 + 1, dtype=torch.int32).view(1, 32, 32, 1)
    crop = ShiftAndFlip(image)
    count = 8_100
    index = torch.zeros(count, dtype=torch.long)
    centres = crop.random(index, torch.Generator().manual_seed(0))[:, 16, 16, 0] - 1
    seen = torch.bincount(centres, minlength=1024)
    places = int((seen > 0).sum())
    # rows 12..20; columns 12..20 straight and 11..19 mirrored: 9 x 10 places
    assert places == 90
    per_row = seen.view(32, 32).sum(1)[12:21].double()
    assert (per_row - count / 9).abs().max() < 5 * (count / 9) ** 0.5
    straight_only, mirrored_only = seen.view(32, 32)[:, 20].sum(), seen.view(32, 32)[:, 11].sum()
    for one_of_18 in (straight_only, mirrored_only):
        assert abs(float(one_of_18) - count / 18) < 5 * (count / 18) ** 0.5


def test_without_flip_the_crops_are_the_same_and_none_is_mirrored():
    image = torch.arange(32 * 32, dtype=torch.int32).view(1, 32, 32, 1)
    index = torch.zeros(64, dtype=torch.long)
    crop = ShiftAndFlip(image)
    crops = crop.random(index, torch.Generator().manual_seed(1), flip=False)
    middle = crops[:, 4:28, 4:28, 0]
    assert torch.equal(middle.diff(dim=2), torch.ones_like(middle.diff(dim=2)))


@pytest.mark.parametrize("channels", [1, 3])
def test_normalized_images_are_channels_last_and_exact(channels):
    normalize = Normalization(mean=CIFAR.mean[:channels], std=CIFAR.std[:channels])
    images = pictures(5, 6, 7, channels)
    result = normalize(images)
    assert result.shape == (5, channels, 6, 7)
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=torch.channels_last)
    pixels = images.numpy().astype(np.float64).transpose(0, 3, 1, 2) / 255
    mean, std = (np.array(values)[:, None, None] for values in (normalize.mean, normalize.std))
    np.testing.assert_allclose(result.numpy(), (pixels - mean) / std, rtol=1e-5, atol=1e-6)


def test_normalizing_leaves_the_images_alone():
    images = pictures(2)
    before = images.clone()
    CIFAR(images)
    assert torch.equal(images, before)


def test_the_benchmark_prints_the_ratio_that_it_returns(capsys):
    """How large it is depends on the machine: `lpsgd bench training augmentation` tells."""
    ratio = training.augmentation(rounds=1)
    ours, pillow = map(float, re.findall(r"([\d.]+) ms", capsys.readouterr().out))
    assert ratio == pytest.approx(pillow / ours, rel=0.1)


def test_the_peer_of_the_benchmark_does_the_same():
    images = pictures(4)
    mean, std = (torch.tensor(values)[:, None, None] for values in (CIFAR.mean, CIFAR.std))
    down, right = torch.tensor([[0, 3, 8, 4], [8, 1, 0, 4]])
    flip = torch.tensor([True, False, True, False])
    theirs = [
        training.pillow_image(Image.fromarray(image.numpy()), d, r, f, mean, std)
        for image, d, r, f in zip(images, down.tolist(), right.tolist(), flip.tolist(), strict=True)
    ]
    # they crop and then mirror, we mirror and then crop: at the mirrored corner
    corner = torch.where(flip, 8 - right, right)
    ours = CIFAR(ShiftAndFlip(images)(torch.arange(4), down, corner, flip))
    torch.testing.assert_close(ours, torch.stack(theirs), check_stride=False)
