"""What each data set is, and the published checksums of its files. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lpsgd._suggest import unknown_name
from lpsgd.lab.errors import UserError


@dataclass(frozen=True)
class PublishedFile:
    """A file of a data set as its authors published it."""

    name: str
    md5: str
    split: Literal["train", "test"]
    images: int


@dataclass(frozen=True)
class Layout:
    """A form in which a data set is published: an archive that holds a folder of files."""

    kind: Literal["binary", "python"]
    folder: str
    url: str
    md5: str
    files: tuple[PublishedFile, ...]

    def missing(self, root: Path) -> list[str]:
        """The names of the files that are not under ``root``."""
        folder = root / self.folder
        return [file.name for file in self.files if not (folder / file.name).is_file()]


@dataclass(frozen=True)
class Entry:
    """A data set: what ``lpsgd data list`` shows and what ``load`` needs to find its code."""

    name: str
    summary: str
    module: str
    options: Mapping[str, str] = field(default_factory=dict)
    layouts: tuple[Layout, ...] = ()
    """The first one is the one that ``lpsgd data get`` downloads."""


def entry(name: str) -> Entry:
    """The description of the data set ``name``."""
    if name not in _ENTRIES:
        raise UserError(unknown_name("data set", name, _ENTRIES))
    return _ENTRIES[name]


def names() -> list[str]:
    """The names of the data sets, the default first."""
    return list(_ENTRIES)


_SITE = "https://www.cs.toronto.edu/~kriz"

_CIFAR10_BINARY = Layout(
    kind="binary",
    folder="cifar-10-batches-bin",
    url=f"{_SITE}/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    files=(
        PublishedFile("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25", "train", 10_000),
        PublishedFile("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692", "train", 10_000),
        PublishedFile("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421", "train", 10_000),
        PublishedFile("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb", "train", 10_000),
        PublishedFile("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d", "train", 10_000),
        PublishedFile("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d", "test", 10_000),
    ),
)
_CIFAR10_PYTHON = Layout(
    kind="python",
    folder="cifar-10-batches-py",
    url=f"{_SITE}/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    files=(
        PublishedFile("data_batch_1", "c99cafc152244af753f735de768cd75f", "train", 10_000),
        PublishedFile("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec", "train", 10_000),
        PublishedFile("data_batch_3", "54ebc095f3ab1f0389bbae665268c751", "train", 10_000),
        PublishedFile("data_batch_4", "634d18415352ddfa80567beed471001a", "train", 10_000),
        PublishedFile("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb", "train", 10_000),
        PublishedFile("test_batch", "40351d587109b95175f43aff81a1287e", "test", 10_000),
    ),
)
_CIFAR100_BINARY = Layout(
    kind="binary",
    folder="cifar-100-binary",
    url=f"{_SITE}/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    files=(
        PublishedFile("train.bin", "6172c7755cfe09b2fe270c85cebc1b15", "train", 50_000),
        PublishedFile("test.bin", "4499cfba6c016c1be1438163640a0898", "test", 10_000),
    ),
)
_CIFAR100_PYTHON = Layout(
    kind="python",
    folder="cifar-100-python",
    url=f"{_SITE}/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    files=(
        PublishedFile("train", "16019d7e3df5f24257cddd939b257f8d", "train", 50_000),
        PublishedFile("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", "test", 10_000),
    ),
)

_CIFAR_OPTIONS = {
    "check": "compare the files with the published checksums (default true)",
}

_ENTRIES = {
    described.name: described
    for described in (
        Entry(
            "digits",
            "1797 handwritten digits that come with scikit-learn, 8x8 resized to 32x32",
            module="digits",
        ),
        Entry(
            "cifar10",
            "60,000 colour photographs of 32x32, 10 classes",
            module="cifar",
            options=_CIFAR_OPTIONS,
            layouts=(_CIFAR10_BINARY, _CIFAR10_PYTHON),
        ),
        Entry(
            "cifar100",
            "60,000 colour photographs of 32x32, 100 classes",
            module="cifar",
            options=_CIFAR_OPTIONS,
            layouts=(_CIFAR100_BINARY, _CIFAR100_PYTHON),
        ),
        Entry(
            "imagefolder",
            "a folder train/CLASS/*.jpg, val/CLASS/*.jpg, as ImageNet-1K is kept",
            module="imagefolder",
            options={
                "path": "the folder that holds train and val (default ROOT/imagefolder)",
                "size": "height and width of the crops (default 224)",
            },
        ),
        Entry(
            "text",
            "characters of a text file; by default Python's own reference manual (pydoc_data)",
            module="text",
            options={
                "path": "a UTF-8 text file (default: the manual that ships with Python)",
                "context": "characters that the model sees at once (default 128)",
            },
        ),
        Entry(
            "synthetic",
            "made-up images of any shape, for load tests",
            module="synthetic",
            options={
                "shape": "channels, height, width (default 3x32x32)",
                "classes": "number of classes (default 10)",
            },
        ),
    )
}
