"""What each data set is, where it lies, and the published checksums of its files.

Imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
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


def check_options(name: str, options: Iterable[str]) -> Entry:
    """The description of the data set ``name``; UserError if it lacks one of ``options``."""
    found = entry(name)
    for option in options:
        if option not in found.options:
            raise UserError(f"data set {name!r}: {unknown_name('option', option, found.options)}")
    return found


def names() -> list[str]:
    """The names of the data sets, the default first."""
    return list(_ENTRIES)


_SITE = "https://www.cs.toronto.edu/~kriz"
_SUMS = (resources.files("lpsgd.lab.data") / "md5sums.txt").read_text(encoding="utf-8")
_MD5 = {path: md5 for md5, path in (line.split() for line in _SUMS.splitlines())}


def _cifar(kind: Literal["binary", "python"], folder: str, archive: str) -> Layout:
    """The 50,000 training images, in one file or several, and the 10,000 test images."""
    names = [path.removeprefix(f"{folder}/") for path in _MD5 if path.startswith(f"{folder}/")]
    *train, test = (_MD5[f"{folder}/{name}"] for name in names)
    images = 50_000 // len(train)
    files = [PublishedFile(n, md5, "train", images) for n, md5 in zip(names, train, strict=False)]
    files.append(PublishedFile(names[-1], test, "test", 10_000))
    return Layout(kind, folder, f"{_SITE}/{archive}", _MD5[archive], tuple(files))


_CIFAR_OPTIONS = {
    "check": "compare the files with the published checksums (default true)",
    "files": "all, or test: the test file alone, a fifth of it for testing (default all)",
    "classes": "only these, as (0,1,2), numbered anew (default all)",
    "size": "height and width, 32 or a part of it: 16 averages the pixels of squares of 2x2",
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
            layouts=(
                _cifar("binary", "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
                _cifar("python", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
            ),
        ),
        Entry(
            "cifar100",
            "60,000 colour photographs of 32x32, 100 classes",
            module="cifar",
            options=_CIFAR_OPTIONS,
            layouts=(
                _cifar("binary", "cifar-100-binary", "cifar-100-binary.tar.gz"),
                _cifar("python", "cifar-100-python", "cifar-100-python.tar.gz"),
            ),
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
            "a text file as characters or sub-words; by default Python's own manual (pydoc_data)",
            module="text",
            options={
                "path": "a UTF-8 text file (default: the manual that ships with Python)",
                "context": "characters or sub-words that the model sees at once (default 128)",
                "vocabulary": "sub-words by byte-pair encoding, 256 or more (default: characters)",
            },
        ),
        Entry(
            "synthetic",
            "generated images of any shape, for load tests",
            module="synthetic",
            options={
                "shape": "channels, height, width (default 3x32x32)",
                "classes": "number of classes (default 10)",
            },
        ),
    )
}


def data_root(given: str | Path | None = None) -> Path:
    """The folder of the data sets: ``given``, else $LPSGD_DATA, else the user's cache folder."""
    if given is not None:
        return Path(given).expanduser()
    if named := os.environ.get("LPSGD_DATA"):
        return Path(named).expanduser()
    return _cache() / "lpsgd" / "data"


def _cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Caches").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
