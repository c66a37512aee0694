"""CIFAR-10 and CIFAR-100 in the two layouts in which they are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lpsgd.lab.data.augment import Normalization
from lpsgd.lab.data.catalogue import Entry, Layout, PublishedFile, entry
from lpsgd.lab.data.loaders import Data, DataRequest, ImageSet, image_data
from lpsgd.lab.data.sets import pickles
from lpsgd.lab.data.source.checksums import md5
from lpsgd.lab.errors import UserError

Pixels = npt.NDArray[np.uint8]

IMAGE_BYTES = 3 * 32 * 32

CLASSES = {"cifar10": 10, "cifar100": 100}
# of the 50,000 training images
NORMALIZATION = {
    "cifar10": Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "cifar100": Normalization(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
}


def load(request: DataRequest, *, check: bool = True) -> Data:
    """The whole data set in memory. ``check=False`` accepts files changed on purpose."""
    if not isinstance(check, bool):
        raise UserError(f"check is {check!r}; allowed: true, false")
    description = entry(request.name)
    layout = find_layout(description, request.root)
    folder, classes = request.root / layout.folder, CLASSES[request.name]
    train, test = (
        read_split(layout, split, folder, classes=classes, check=check)
        for split in ("train", "test")
    )
    return image_data(request, train, test, NORMALIZATION[request.name], classes=classes)


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
        f"{name} is not there: {'; '.join(missing)}. Get it with: lpsgd data get {name}"
    )


def read_split(
    layout: Layout, split: str, folder: Path, *, classes: int, check: bool = True
) -> ImageSet:
    """Read all files of a split, checking their size, their labels and their published checksum."""
    files = [file for file in layout.files if file.split == split]
    total = sum(file.images for file in files)
    images = np.empty((total, 32, 32, 3), np.uint8)
    labels = np.empty(total, np.int64)
    done = 0
    for file in files:
        path = folder / file.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        read = _read_binary if layout.kind == "binary" else _read_python
        planes, numbers = read(path, content, file, classes)
        _check_labels(path, numbers, classes)
        if check and md5(content) != file.md5:
            raise UserError(
                f"{path} is not the published file: its md5 is {md5(content)}, not {file.md5}."
                " Remove it and get the data set again with `lpsgd data get`, or load it with"
                " check=False if you changed it on purpose"
            )
        here = slice(done, done + file.images)
        images[here] = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels[here] = numbers
        done += file.images
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels))


def _check_labels(path: Path, labels: npt.NDArray[Any], classes: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise UserError(
            f"{path} is mislabelled: image {first} has the label {labels[first]},"
            f" allowed: 0 to {classes - 1} ({len(wrong)} such labels)"
        )


def _read_binary(
    path: Path, content: bytes, file: PublishedFile, classes: int
) -> tuple[Pixels, npt.NDArray[np.int64]]:
    # CIFAR-100 has two label bytes for each image, the superclass and the class; CIFAR-10 has one
    label_bytes = 2 if classes == 100 else 1
    record = label_bytes + IMAGE_BYTES
    if len(content) != file.images * record:
        state = "truncated" if len(content) < file.images * record else "too long"
        raise UserError(
            f"{path} is {state}: {len(content)} bytes,"
            f" should be {file.images * record} ({file.images} records of {record} bytes)"
        )
    records = np.frombuffer(content, np.uint8).reshape(file.images, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _read_python(
    path: Path, content: bytes, file: PublishedFile, classes: int
) -> tuple[Pixels, npt.NDArray[Any]]:
    try:
        batch = pickles.loads(content)
    except pickles.ForbiddenPickle as error:
        raise UserError(f"{path} is refused, it may be hostile: {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(
            f"{path} is truncated or corrupt: {str(error) or type(error).__name__}"
        ) from error
    key = "fine_labels" if classes == 100 else "labels"
    batch = _text_keys(batch)
    if not {"data", key} <= batch.keys():
        raise UserError(
            f"{path} is not a CIFAR batch with {classes} classes: no {key!r} and 'data'"
        )
    pixels, labels = batch["data"], batch[key]
    expected = (file.images, IMAGE_BYTES)
    if not isinstance(pixels, np.ndarray) or (pixels.dtype, pixels.shape) != (np.uint8, expected):
        is_array = isinstance(pixels, np.ndarray)
        found = f"{pixels.dtype} {pixels.shape}" if is_array else type(pixels).__name__
        raise UserError(f"{path}: 'data' is {found}, should be uint8 {expected}")
    if not isinstance(labels, list):
        raise UserError(f"{path}: {key!r} is {type(labels).__name__}, should be a list")
    numbers = [label for label in labels if isinstance(label, int)]
    if len(numbers) != len(labels) or len(labels) != file.images:
        raise UserError(
            f"{path}: {key!r} holds {len(numbers)} whole numbers in {len(labels)} entries,"
            f" should be {file.images}"
        )
    # as objects, because a damaged label may be any number; they are checked before they are kept
    return pixels, np.array(numbers, object)


def _text_keys(batch: object) -> dict[Any, Any]:
    # the official files were written by Python 2, whose strings are read as bytes
    if not isinstance(batch, dict):
        return {}
    return {key.decode("latin-1") if isinstance(key, bytes) else key: v for key, v in batch.items()}
