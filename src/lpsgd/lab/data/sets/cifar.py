"""CIFAR-10 and CIFAR-100 in the two layouts in which they are published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from lpsgd.lab.data.augment import Normalization
from lpsgd.lab.data.catalogue import Entry, Layout, entry
from lpsgd.lab.data.loaders import (
    Data,
    DataRequest,
    ImageSet,
    every_fifth_apart,
    image_data,
    read_count,
)
from lpsgd.lab.data.sets import pickles
from lpsgd.lab.data.source.download import md5
from lpsgd.lab.errors import UserError

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

SIDE = 32
IMAGE_BYTES = 3 * SIDE * SIDE

CLASSES = {"cifar10": 10, "cifar100": 100}
# of the 50,000 training images
NORMALIZATION = {
    "cifar10": Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "cifar100": Normalization(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
}


def load(
    request: DataRequest,
    *,
    check: bool = True,
    size: int = SIDE,
    classes: Sequence[int] | None = None,
    files: Literal["all", "test"] = "all",
) -> Data:
    """The whole data set in memory. ``check=False`` accepts files changed on purpose.

    A smaller ``size`` averages the pixels of squares: four times as quick at 16. With ``classes``
    only the images of these, which are numbered anew in this order. ``files="test"`` needs the test
    file alone, of which every fifth image of each class is then for testing.
    """
    if not isinstance(check, bool):
        raise UserError(f"check is {check!r}; allowed: true, false")
    size = read_count("size", size, least=1)
    if SIDE % size:
        raise UserError(f"size is {size}; allowed: 32, 16, 8, 4, 2, 1")
    if files not in ("all", "test"):
        raise UserError(f"files is {files!r}; allowed: all, test")
    description = entry(request.name)
    if files == "test":
        description = _test_file_alone(description)
    layout = find_layout(description, request.root)
    folder, total = request.root / layout.folder, CLASSES[request.name]
    wanted = None if classes is None else _class_numbers(classes, total)
    splits = ("train", "test") if files == "all" else ("test",)
    read = [
        shrink(read_split(layout, split, folder, classes=total, check=check), size)
        for split in splits
    ]
    train, test = read if files == "all" else every_fifth_apart(read[0])
    if wanted is not None:
        train, test, total = of_classes(train, wanted), of_classes(test, wanted), len(wanted)
    return image_data(request, train, test, NORMALIZATION[request.name], classes=total)


def _test_file_alone(description: Entry) -> Entry:
    """The data set as if only its test file were published."""
    layouts = (
        replace(layout, files=tuple(file for file in layout.files if file.split == "test"))
        for layout in description.layouts
    )
    return replace(description, layouts=tuple(layouts))


def _class_numbers(classes: Sequence[int], total: int) -> list[int]:
    numbers = list(classes) if isinstance(classes, list | tuple) else []
    whole = all(isinstance(n, int) and 0 <= n < total for n in numbers)
    if not whole or len(set(numbers)) < len(numbers) or not numbers:
        raise UserError(
            f"classes is {classes!r}; allowed: a list of different numbers from 0 to {total - 1}"
        )
    return numbers


def of_classes(images: ImageSet, classes: Sequence[int]) -> ImageSet:
    """The images of these classes, with the place in ``classes`` as the label."""
    labels = torch.full_like(images.labels, -1)
    for new, old in enumerate(classes):
        labels[images.labels == old] = new
    return ImageSet(images.images, labels).take(torch.nonzero(labels >= 0).squeeze(1))


def shrink(images: ImageSet, size: int) -> ImageSet:
    """The images at ``size`` x ``size``, each pixel the mean of a square."""
    if size == SIDE:
        return images
    part = SIDE // size
    squares = images.images.view(-1, size, part, size, part, 3)
    means = squares.sum(dim=(2, 4), dtype=torch.int32).float() / part**2
    return ImageSet(means.round().to(torch.uint8), images.labels)


def find_layout(description: Entry, root: Path) -> Layout:
    """The first layout all of whose files are under ``root``."""
    missing = []
    for layout in description.layouts:
        absent = layout.missing(root)
        if not absent:
            return layout
        missing.append(f"{root / layout.folder} lacks {', '.join(absent)}")
    name = description.name
    raise UserError(
        f"{name} was not found: {'; '.join(missing)}. Get it with: lpsgd data get {name}"
    )


def read_split(
    layout: Layout, split: str, folder: Path, *, classes: int, check: bool = True
) -> ImageSet:
    """Read all files of a split, which must have their published checksums unless ``check`` is off.

    The checksum finds whatever happened to a file; files that were changed on purpose only have to
    hold as many images and labels as the published ones.
    """
    files = [file for file in layout.files if file.split == split]
    read = _read_binary if layout.kind == "binary" else _read_python
    images, labels = [], []
    for file in files:
        path = folder / file.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        if check and md5(content) != file.md5:
            raise UserError(
                f"{path} is not the published file: its md5 is {md5(content)}, not {file.md5}."
                " Remove it and get the data set again with `lpsgd data get`, or load it with"
                " check=False if you changed it on purpose"
            )
        try:
            pixels, numbers = read(content, classes)
            images.append(pixels.reshape(file.images, 3, SIDE, SIDE))
            labels.append(numbers.reshape(file.images))
            if numbers.min() < 0 or numbers.max() >= classes:
                raise ValueError(f"labels from {numbers.min()} to {numbers.max()}")
        except pickles.ForbiddenPickle as error:
            raise UserError(f"{path} is refused, it may be hostile: {error}") from error
        except Exception as error:  # a damaged file may raise anything
            raise UserError(
                f"{path} does not hold {file.images} images of {classes} classes: {error!r}"
            ) from error
    planes = np.ascontiguousarray(np.concatenate(images).transpose(0, 2, 3, 1))
    return ImageSet(torch.from_numpy(planes), torch.from_numpy(np.concatenate(labels)))


def _read_binary(content: bytes, classes: int) -> tuple[Pixels, Labels]:
    # CIFAR-100 has two label bytes for each image, the superclass and the class; CIFAR-10 has one
    label_bytes = 2 if classes == 100 else 1
    records = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + IMAGE_BYTES)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _read_python(content: bytes, classes: int) -> tuple[Pixels, Labels]:
    # the official files were written by Python 2, whose strings are read as bytes
    batch = {
        k.decode() if isinstance(k, bytes) else k: v for k, v in pickles.loads(content).items()
    }
    labels = np.asarray(batch["fine_labels" if classes == 100 else "labels"])
    pixels = np.asarray(batch["data"])
    # "safe": numbers of another kind are an error, not rounded
    return pixels.astype(np.uint8, casting="safe"), labels.astype(np.int64, casting="safe")
