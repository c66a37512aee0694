"""Folders of JPEG files, one for each class, as ImageNet-1K is kept."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lpsgd.lab.data.augment import Normalization
from lpsgd.lab.data.loaders import Batch, Data, DataRequest, Loader, Rows, chosen, read_count
from lpsgd.lab.data.seeding import derive
from lpsgd.lab.data.subsets import pick_test, split_train
from lpsgd.lab.errors import LabError, UserError

EXTENSIONS = {".jpg", ".jpeg", ".png"}
FORMATS = ("JPEG", "PNG")  # by content: a name may lie, and other formats start other programs
MOST_PIXELS = 100_000_000
LONGEST_RATIO = 64  # of the sides; a crop enlarges the shorter one first
NORMALIZATION = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def load(request: DataRequest, *, path: str | Path | None = None, size: int = 224) -> Data:
    """``path``/train and ``path``/val hold a folder for each class; ``val`` is the test set."""
    folder = place(request.root, path)
    size = read_count("size", size, least=1)
    train, test = scan(folder)
    chosen, held_out = split_train(
        train.labels, train_size=request.train_size, val_size=request.val_size, seed=request.seed
    )
    tested = pick_test(test.labels, request.test_size)
    return Data(
        name=request.name,
        task="image",
        input_shape=(3, size, size),
        classes=len(train.classes),
        train=FileLoader(train.take(chosen), size, request, train=True),
        val=FileLoader(train.take(held_out), size, request, train=False)
        if request.val_size
        else None,
        test=FileLoader(test.take(tested), size, request, train=False),
    )


def place(root: Path, path: str | Path | None = None) -> Path:
    """The folder that holds train and val."""
    return root / "imagefolder" if path is None else Path(str(path)).expanduser()


@dataclass(frozen=True)
class Files:
    """Image files with their labels; label ``k`` is the class ``classes[k]``."""

    paths: list[Path]
    labels: Tensor
    classes: list[str]

    def take(self, index: Tensor) -> Files:
        """The files of these indices."""
        return Files([self.paths[i] for i in index.tolist()], self.labels[index], self.classes)


def scan(folder: Path) -> tuple[Files, Files]:
    """List the training and the test files, in the order of class and file names."""
    for name in ("train", "val"):
        if not (folder / name).is_dir():
            raise UserError(
                f"{folder / name} was not found: imagefolder needs {folder}/train/CLASS/*.jpg and"
                f" {folder}/val/CLASS/*.jpg; give the folder that holds train and val as `path`"
            )
    classes = sorted(_folders(folder / "train"))
    if not classes:
        raise UserError(f"{folder / 'train'} holds no folders, one for each class are needed")
    return _list(folder / "train", classes), _list(folder / "val", classes)


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, without what macOS and notebooks hide there (._1.jpg, .ipynb_...)."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error


def _folders(folder: Path) -> set[str]:
    return {entry.name for entry in _visible(folder) if entry.is_dir()}


def _list(folder: Path, classes: list[str]) -> Files:
    unknown = _folders(folder) - set(classes)
    if unknown:
        raise UserError(f"{folder / min(unknown)}: there is no such class in the training set")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        folder_of_class = folder / name
        files = _visible(folder_of_class) if folder_of_class.is_dir() else []
        images = [file for file in files if file.suffix.lower() in EXTENSIONS]
        if not images:
            raise UserError(f"{folder_of_class} holds no images ({', '.join(sorted(EXTENSIONS))})")
        paths += images
        labels += [label] * len(images)
    return Files(paths, torch.tensor(labels), classes)


def read_image(path: Path) -> Image.Image:
    """Decode an image file; grey, CMYK, palette and transparent images become RGB."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            _check_size(image)
            if image.mode.startswith("I"):  # 16 bits, of which Pillow would cut off the upper 8
                numbers = np.asarray(image).astype(np.int64) >> 8
                return Image.fromarray(numbers.clip(0, 255).astype(np.uint8)).convert("RGB")
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow's own message may start with the path
        reason = str(error).replace(f" {str(path)!r}", "")
        raise LabError(f"{path} cannot be decoded: {reason}") from error


def _check_size(image: Image.Image) -> None:
    """Refuse, before a pixel is decoded, what would take gigabytes to decode or to resize."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"it has {width} x {height} pixels, allowed are {MOST_PIXELS:,}")
    if max(width, height) > LONGEST_RATIO * min(width, height):
        raise ValueError(
            f"it has {width} x {height} pixels, the longer side at most {LONGEST_RATIO} times the "
            "shorter one is allowed"
        )


def random_resized_crop(image: Image.Image, size: int, draw: random.Random) -> Image.Image:
    """A crop of 8 to 100 % of the area and a ratio of 3:4 to 4:3, resized, mirrored half the time
    (Szegedy et al. 2015; the same proposal as torchvision's RandomResizedCrop)."""
    width, height = image.size
    box = None
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1.0)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.randint(0, width - w), draw.randint(0, height - h)
            box = (left, top, left + w, top + h)
            break
    if box is None:  # a very long image: the largest centred crop of an allowed ratio
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
        box = (left, top, left + w, top + h)
    crop = image.crop(box).resize((size, size), Image.Resampling.BILINEAR)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else crop


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to 256/224 of ``size``, then take the middle."""
    short = round(size * 256 / 224)
    width, height = image.size
    if width <= height:
        width, height = short, int(short * height / width)
    else:
        width, height = int(short * width / height), short
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return resized.crop((left, top, left + size, top + size))


class FileLoader(Loader):
    """Image files, decoded by worker processes.

    Image ``i`` of epoch ``e`` is cropped by random numbers of (seed, e, i) alone, so neither the
    number of workers nor where a run resumes changes it.
    """

    def __init__(self, files: Files, size: int, request: DataRequest, *, train: bool) -> None:
        super().__init__(len(files.paths), request, train=train)
        self._files = files
        self._crop = size
        self._workers = request.workers
        self._device = torch.device(request.device)

    def _draw(
        self, batches: Sequence[Tensor], epoch: int, start: int, *, augment: bool, rows: Rows | None
    ) -> Iterator[Batch]:
        loader = DataLoader(
            _Crops(self._files, self._crop, self.seed, epoch if augment else None),
            batch_sampler=[chosen(index, rows).tolist() for index in batches],
            num_workers=self._workers,
            collate_fn=partial(_stack, self._crop),
            pin_memory=self._device.type == "cuda",
            # its own, or each epoch would draw a number from torch's global generator, and a run
            # resumed in mid-epoch would draw one more than one that never stopped
            generator=torch.Generator(),
        )
        for made in loader:
            if isinstance(made, _Failure):
                raise LabError(made.message)
            images, labels = (part.to(self._device, non_blocking=True) for part in made)
            yield NORMALIZATION(images), labels


@dataclass(frozen=True)
class _Failure:
    """An error as a value: raised in a worker it would arrive wrapped in the worker's traceback."""

    message: str


class _Crops(Dataset["tuple[Tensor, int] | _Failure"]):
    def __init__(self, files: Files, size: int, seed: int, epoch: int | None) -> None:
        self.paths = files.paths
        self.labels = files.labels
        self.size = size
        self.seed = seed
        self.epoch = epoch  # None: not augmented

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | _Failure:
        try:
            image = read_image(self.paths[index])
        except LabError as error:
            return _Failure(str(error))
        if self.epoch is None:
            crop = centre_crop(image, self.size)
        else:
            draw = random.Random(derive(self.seed, "augment", self.epoch, index))
            crop = random_resized_crop(image, self.size, draw)
        return torch.from_numpy(np.array(crop)), int(self.labels[index])


def _stack(size: int, items: list[tuple[Tensor, int] | _Failure]) -> Batch | _Failure:
    if not items:  # a last batch with fewer images than there are processes to share it
        return torch.empty(0, size, size, 3, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
    images, labels = [], []
    for item in items:
        if isinstance(item, _Failure):
            return item
        images.append(item[0])
        labels.append(item[1])
    return torch.stack(images), torch.tensor(labels)
