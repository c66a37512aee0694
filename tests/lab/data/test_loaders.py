"""Batches are a pure function of (seed, epoch, batch): every loader of data sets in memory."""

from __future__ import annotations

import pytest
import torch

from lpsgd.lab.data import data_root, load, names
from lpsgd.lab.data.augment import Normalization
from lpsgd.lab.data.loaders import DataRequest, ImageLoader, ImageSet
from lpsgd.lab.errors import UserError

NAMES = ["digits", "synthetic", "text"]


def small(name, **settings):
    options = {"context": 32} if name == "text" else {}
    given = {"batch_size": 50, "train_size": 330, "val_size": 70, "test_size": 120} | settings
    return load(name, **given, **options)


def same(first, second):
    return len(first) == len(second) and all(
        torch.equal(a, b)
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_started_in_the_middle_equals_the_rest_of_the_whole(name):
    whole = list(small(name).train.epoch(3))
    assert len(whole) == 6
    for start in range(7):
        # a new object, as in a resumed process
        assert same(list(small(name).train.epoch(3, start=start)), whole[start:])


@pytest.mark.parametrize("name", NAMES)
def test_interleaved_iterators_do_not_disturb_each_other(name):
    train = small(name).train
    expected = list(train.epoch(0)), list(train.epoch(1))
    pairs = list(zip(train.epoch(0), train.epoch(1), strict=True))
    # compared at the end, so that memory used twice would show
    assert same([a for a, _ in pairs], expected[0])
    assert same([b for _, b in pairs], expected[1])


@pytest.mark.parametrize("name", NAMES)
def test_epochs_and_seeds_differ_and_test_does_not(name):
    first, other = small(name, seed=0), small(name, seed=1)
    assert not same(list(first.train.epoch(0)), list(first.train.epoch(1)))
    assert not same(list(first.train.epoch(0)), list(other.train.epoch(0)))
    assert same(list(first.test.epoch(0)), list(first.test.epoch(1)))
    assert same(list(first.test.epoch(0)), list(other.test.epoch(5)))


@pytest.mark.parametrize("name", NAMES)
def test_sizes_and_partial_batches(name):
    data = small(name)
    assert (data.train.size, data.val.size, data.test.size) == (330, 70, 120)
    assert (len(data.train), len(data.val), len(data.test)) == (6, 2, 3)
    assert [len(x) for x, _ in data.train.epoch(0)] == [50] * 6
    assert [len(x) for x, _ in data.test.epoch(0)] == [50, 50, 20]
    assert [len(x) for x, _ in data.train.plain()] == [50] * 6 + [30]
    assert small(name, val_size=0).val is None


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drawn_from_the_global_generator(name):
    before = torch.get_rng_state()
    data = small(name)
    list(data.train.epoch(0))
    list(data.test.epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_without_augmentation_is_a_permutation_of_plain():
    data = small("digits", batch_size=30, augment=False)
    plain = torch.cat([x for x, _ in data.train.plain()]).flatten(1)
    epoch = torch.cat([x for x, _ in data.train.epoch(0)]).flatten(1)
    assert not torch.equal(plain, epoch)
    assert sorted(plain.tolist()) == sorted(epoch.tolist())


def test_augmentation_changes_pixels_only():
    augmented, plain = small("digits"), small("digits", augment=False)
    pairs = zip(augmented.train.epoch(2), plain.train.epoch(2), strict=True)
    for (images, labels), (pixels, truth) in pairs:
        assert torch.equal(labels, truth)
        assert not torch.equal(images, pixels)
    assert same(list(augmented.train.plain()), list(plain.train.plain()))
    assert same(list(augmented.val.epoch(0)), list(plain.val.epoch(0)))


def test_every_batch_and_every_image_is_augmented_in_its_own_way(tmp_path):
    # one picture, again and again: what differs between two images is their augmentation
    picture = torch.arange(32 * 32).remainder(251).to(torch.uint8).view(1, 32, 32, 1)
    same_pictures = ImageSet(picture.repeat(200, 1, 1, 1), torch.zeros(200, dtype=torch.long))
    request = DataRequest("one", tmp_path, 0, None, 0, None, 100, True, "cpu", 0)
    loader = ImageLoader(same_pictures, request, Normalization((0.5,), (0.5,)), train=True)
    first, second = (images for images, _ in loader.epoch(0))
    assert not torch.equal(first, second)
    assert len(first.flatten(1).unique(dim=0)) > 50  # of 162 possible ones


def test_images_are_channels_last():
    images, labels = next(small("synthetic").train.epoch(0))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64


def test_images_are_kept_as_bytes():
    assert small("synthetic").train._images.dtype == torch.uint8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"batch_size": 331}, "batch_size is 331; there are only 330 training examples"),
        ({"workers": -1}, "workers is -1"),
        ({"device": "gpu"}, "device is 'gpu', which is not usable"),
        ({"device": "cuda:99"}, "device is 'cuda:99', which is not usable"),
        ({"fold": 3}, "data set 'digits': unknown option 'fold'; there are: none"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(UserError, match=message):
        small("digits", **settings)


def test_a_start_outside_the_epoch():
    train = small("digits").train
    assert list(train.epoch(0, start=6)) == []
    with pytest.raises(ValueError, match="start is 7; allowed: 0 to 6"):
        train.epoch(0, start=7)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"unknown data set 'cifar-10' \(did you mean 'cifar10'"):
        load("cifar-10")
    assert names()[0] == "digits"


def test_the_root_is_the_argument_else_the_variable_else_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LPSGD_DATA", str(tmp_path / "variable"))
    assert data_root(tmp_path / "given") == tmp_path / "given"
    assert data_root() == tmp_path / "variable"
    monkeypatch.delenv("LPSGD_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    assert data_root() == tmp_path / "cache" / "lpsgd" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "lpsgd" / "data"
