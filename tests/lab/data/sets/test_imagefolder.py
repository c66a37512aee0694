"""Folders of JPEG: decoding, crops, workers, resume, errors."""

from __future__ import annotations

import math
import random
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from lpsgd.lab.data import load
from lpsgd.lab.data.sets.imagefolder import (
    NORMALIZATION,
    centre_crop,
    random_resized_crop,
    read_image,
    scan,
)
from lpsgd.lab.data.source import obtain
from lpsgd.lab.errors import LabError, UserError

# a fork of a process with threads, which Python 3.12 and 3.13 warn about and DataLoader does
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # few cores
]

CLASSES = ("ant", "bee", "cat")
PER_CLASS = {"train": 10, "val": 4}


def gradient(width, height):
    """A picture whose red is the column and whose green is the row."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.arange(width)[None, :]
    pixels[..., 1] = np.arange(height)[:, None]
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of noise in JPEG files of different shapes and modes."""
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for split, count in PER_CLASS.items():
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                size = (int(draw.integers(20, 60)), int(draw.integers(20, 60)), 3)
                mode = ("RGB", "L", "CMYK")[number % 3]
                picture = Image.fromarray(draw.integers(0, 256, size, dtype=np.uint8)).convert(mode)
                picture.save(folder / split / name / f"{number}.JPEG", "JPEG")
    (folder / "train" / "ant" / "notes.txt").write_text("not an image")
    return folder


def from_folder(folder, **settings):
    return load("imagefolder", path=folder, size=16, batch_size=4, **settings)


def test_shapes_labels_and_sizes(folder):
    data = from_folder(folder)
    assert (data.input_shape, data.classes, data.task) == ((3, 16, 16), 3, "image")
    assert (data.train.size, data.test.size, len(data.train)) == (30, 12, 7)
    images, labels = next(data.train.epoch(0))
    assert images.shape == (4, 3, 16, 16)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64
    test_labels = [label for _, batch in data.test.epoch(0) for label in batch.tolist()]
    assert test_labels == [0] * 4 + [1] * 4 + [2] * 4


def test_any_number_of_workers_and_any_start_give_the_same_bytes(folder):
    whole = list(from_folder(folder, workers=0).train.epoch(2))
    for workers, start in ((0, 3), (1, 0), (3, 5)):
        rest = list(from_folder(folder, workers=workers).train.epoch(2, start=start))
        assert len(rest) == 7 - start
        for (images, labels), (expected, truth) in zip(rest, whole[start:], strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, truth)


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_drawn_from_the_global_generators(folder, workers):
    states = torch.get_rng_state(), random.getstate()
    list(from_folder(folder, workers=workers).train.epoch(0))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_epochs_and_seeds_give_other_crops(folder):
    def crops(seed, epoch):
        return torch.cat([x for x, _ in from_folder(folder, seed=seed).train.epoch(epoch)])

    assert not torch.equal(crops(0, 0), crops(0, 1))
    assert not torch.equal(crops(0, 0), crops(1, 0))


def test_every_image_is_cropped_in_its_own_way(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "ant").mkdir(parents=True)
        for number in range(8):
            gradient(64, 64).save(tmp_path / split / "ant" / f"{number}.png")
    crops = torch.cat([images for images, _ in from_folder(tmp_path).train.epoch(0)])
    assert len(crops.flatten(1).unique(dim=0)) == 8


def test_plain_and_test_images_are_centre_crops(folder):
    data = from_folder(folder)
    plain = torch.cat([x for x, _ in data.train.plain()])
    paths = [folder / "train" / name / f"{k}.JPEG" for name in CLASSES for k in range(10)]
    expected = [np.array(centre_crop(read_image(path), 16)) for path in paths]
    assert torch.equal(plain, NORMALIZATION(torch.from_numpy(np.stack(expected))))


def test_validation_comes_from_the_training_files(folder):
    data = from_folder(folder, val_size=6, train_size=15, test_size=6)
    assert (data.train.size, data.val.size, data.test.size) == (15, 6, 6)
    train, val = data.train._files, data.val._files
    assert not set(train.paths) & set(val.paths)
    assert all(path.is_relative_to(folder / "train") for path in train.paths + val.paths)
    assert all(path.is_relative_to(folder / "val") for path in data.test._files.paths)
    assert torch.bincount(val.labels).tolist() == [2, 2, 2]


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P", "LA"])
def test_every_kind_of_image_becomes_rgb(mode, tmp_path):
    path = tmp_path / f"image.{'jpg' if mode in ('L', 'CMYK') else 'png'}"
    Image.new("RGB", (8, 8), (204, 204, 204)).convert(mode).save(path)
    image = read_image(path)
    assert image.mode == "RGB"
    assert np.abs(np.array(image).astype(int) - 204).max() <= 2


def test_the_upper_bits_of_16_are_kept(tmp_path):
    """A grey PNG of 16 bits, as cameras and microscopes write them."""
    values = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(values + 100).save(tmp_path / "image.png")
    pixels = np.array(read_image(tmp_path / "image.png"))
    assert pixels.shape == (16, 16, 3)
    assert np.array_equal(pixels, np.repeat((values // 256)[:, :, None], 3, axis=2))


def test_hidden_files_and_folders_are_not_images_and_classes(tmp_path):
    for split in ("train", "val"):
        for name in ("ant", "bee", ".ipynb_checkpoints"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / split / name / "1.jpg")
            (tmp_path / split / name / "._1.jpg").write_bytes(b"of macOS")
    train, val = scan(tmp_path)
    assert train.classes == val.classes == ["ant", "bee"]
    assert [path.name for path in train.paths + val.paths] == ["1.jpg"] * 4


def test_centre_crop_is_the_middle_of_the_resized_image():
    # 512 x 256 needs no resizing of its short side: the crop starts at column 144, row 16
    crop = np.array(centre_crop(gradient(512, 256), 224))
    assert crop.shape == (224, 224, 3)
    assert crop[0, :, 1].tolist() == [16] * 224
    assert crop[0, :, 0].tolist() == [(144 + k) % 256 for k in range(224)]
    for size in ((100, 300), (300, 100), (7, 7), (1, 50)):
        assert centre_crop(Image.new("RGB", size), 224).size == (224, 224)


def test_random_crops_have_the_stated_areas_and_ratios(monkeypatch):
    image = Image.new("RGB", (150, 150))
    boxes = []
    monkeypatch.setattr(
        Image.Image, "crop", lambda self, box: boxes.append(box) or Image.new("RGB", (2, 2))
    )
    for seed in range(2000):
        random_resized_crop(image, 4, random.Random(seed))
    areas = np.array([(r - l) * (b - t) for l, t, r, b in boxes]) / 22_500  # noqa: E741
    ratios = np.array([(r - l) / (b - t) for l, t, r, b in boxes])  # noqa: E741
    assert areas.min() > 0.07
    assert areas.max() <= 1
    assert areas.min() < 0.1
    assert ratios.min() > 0.70
    assert ratios.max() < 1.42
    # the ratio's logarithm is uniform, hence symmetric about 0
    assert abs(np.log(ratios).mean()) < 0.03
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 150
        assert 0 <= top < bottom <= 150


def test_half_of_the_crops_are_mirrored():
    image = gradient(100, 100)
    mirrored = [
        int(crop[0, 0, 0]) > int(crop[0, -1, 0])
        for seed in range(400)
        for crop in [np.array(random_resized_crop(image, 8, random.Random(seed)))]
    ]
    assert abs(sum(mirrored) - 200) < 50


@pytest.mark.parametrize("size", [(1000, 3), (3, 1000), (1, 1)])
def test_extreme_images_fall_back_to_a_centred_crop(size):
    crop = random_resized_crop(gradient(*size), 8, random.Random(0))
    assert crop.size == (8, 8)
    if size == (1000, 3):  # 4:3 of the middle: columns 498 to 501, modulo 256
        columns = np.array(crop)[..., 0]
        assert 498 - 256 <= columns.min() <= columns.max() <= math.ceil(502 - 256)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_a_corrupt_file_is_named(folder, tmp_path, workers, damage):
    for split in ("train", "val"):
        (tmp_path / split / "ant").mkdir(parents=True)
        for number in range(8):
            gradient(64, 64).save(tmp_path / split / "ant" / f"{number}.jpg")
    bad = tmp_path / "train" / "ant" / "5.jpg"
    whole = bad.read_bytes()
    bad.write_bytes({"truncated": whole[:-200], "text": b"not a picture", "empty": b""}[damage])
    data = from_folder(tmp_path, workers=workers)
    with pytest.raises(LabError, match=r"train/ant/5.jpg cannot be decoded: ") as caught:
        list(data.train.epoch(0))
    assert "Traceback" not in str(caught.value)
    assert str(caught.value).count(str(bad)) == 1


def test_verify_decodes_every_image(tmp_path):
    root = tmp_path / "imagefolder"
    for split in ("train", "val"):
        (root / split / "ant").mkdir(parents=True)
        gradient(64, 64).save(root / split / "ant" / "0.jpg")
    assert [check.ok for check in obtain.verify("imagefolder", tmp_path)] == [True, True]
    (root / "val" / "ant" / "1.jpg").write_bytes(b"not a picture")
    checks = list(obtain.verify("imagefolder", tmp_path))
    assert [check.ok for check in checks] == [True, True, False]
    assert checks[2].detail.startswith("cannot be decoded")


def test_wrong_folders(folder, tmp_path):
    with pytest.raises(UserError, match=r"train was not found: imagefolder needs .*/train/CLASS"):
        from_folder(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match="val was not found"):
        from_folder(tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(UserError, match="train holds no folders"):
        from_folder(tmp_path)
    (tmp_path / "train" / "ant").mkdir()
    with pytest.raises(UserError, match="train/ant holds no images"):
        from_folder(tmp_path)
    (tmp_path / "val" / "bee").mkdir()
    gradient(9, 9).save(tmp_path / "train" / "ant" / "0.png")
    with pytest.raises(UserError, match="val/bee: there is no such class in the training set"):
        from_folder(tmp_path)
    with pytest.raises(UserError, match="size is 0"):
        load("imagefolder", path=folder, size=0)


def test_files_are_listed_in_the_order_of_their_names(folder):
    train, _ = scan(folder)
    assert train.classes == list(CLASSES)
    assert train.paths == sorted(train.paths)
    assert len(train.paths) == 30


@pytest.mark.parametrize("kind", ["EPS", "GIF", "TIFF", "BMP"])
def test_only_jpeg_and_png_are_opened_whatever_the_name_says(kind, tmp_path):
    path = tmp_path / "image.png"
    Image.new("RGB", (20, 20)).save(path, format=kind)
    with pytest.raises(LabError, match="image.png cannot be decoded"):
        read_image(path)


@pytest.mark.parametrize("size", [(60_000, 1), (1, 60_000), (20_000, 20_000)])
def test_an_image_that_would_take_gigabytes_is_refused_before_it_is_decoded(size, tmp_path):
    path = tmp_path / "large.png"
    with path.open("wb") as stream:  # a header alone: nothing is there to be decoded
        header = b"IHDR" + struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0)
        stream.write(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header)
        stream.write(struct.pack(">I", zlib.crc32(header)))
        stream.write(struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT")))
    with pytest.raises(LabError, match=f"large.png cannot be decoded.*{size[0]} x {size[1]}|bomb"):
        read_image(path)
