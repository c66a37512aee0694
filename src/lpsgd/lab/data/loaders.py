"""What a loaded data set is: three loaders, each a pure function from (epoch, batch) to tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lpsgd.lab.data.augment import Normalization, ShiftAndFlip
from lpsgd.lab.data.seeding import generator
from lpsgd.lab.data.subsets import pick_test, split_train
from lpsgd.lab.errors import UserError

Batch = Any
"""(inputs, targets), or whatever the user's own data set gives."""
Rows = Callable[[int], Tensor]
"""From the number of examples in a batch to the places in it of those that are wanted."""


@dataclass(frozen=True)
class DataRequest:
    """The arguments of :func:`lpsgd.lab.data.load` that every data set understands."""

    name: str
    root: Path
    seed: int
    train_size: int | None
    val_size: int
    test_size: int | None
    batch_size: int
    augment: bool
    device: str
    workers: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size}; allowed: 1 or more")
        if self.workers < 0:
            raise UserError(f"workers is {self.workers}; allowed: 0 or more")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:  # which one depends on the build of torch
            raise UserError(f"device is {self.device!r}, which is not usable: {error}") from error


def read_count(name: str, value: object, *, least: int) -> int:
    """The option ``name`` as a whole number; from a command line it comes as text."""
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise UserError(f"{name} is {value!r}; allowed: a whole number, {least} or more")
    return number


def chosen(index: Tensor, rows: Rows | None) -> Tensor:
    """The entries of a batch's ``index`` that are wanted."""
    return index if rows is None else index[rows(len(index))]


class Loader(ABC):
    """The examples of one split, as batches on the training device.

    ``len(loader)`` is the number of batches of an epoch. The training split drops the
    last, partial batch, because a step on a few examples would be a step of another kind; the
    others keep it, because every example must count.
    """

    resumable: ClassVar[bool] = True
    """Whether an epoch can start at any of its batches."""

    def __init__(self, size: int, request: DataRequest, *, train: bool) -> None:
        if train and request.batch_size > size:
            raise UserError(
                f"batch_size is {request.batch_size}; there are only {size} training examples"
            )
        self.size = size
        self.batch_size = request.batch_size
        self.seed = request.seed
        self.shuffle = self.drop_last = train
        self.augment = train and request.augment

    def __len__(self) -> int:
        return self.size // self.batch_size if self.drop_last else -(-self.size // self.batch_size)

    def epoch(self, epoch: int, start: int = 0, rows: Rows | None = None) -> Iterator[Batch]:
        """Yield (inputs, targets) of the batches ``start``, ``start + 1``, ... of one epoch.

        With ``rows``, of each batch only those examples, just as they are in the whole batch: each
        of several processes makes its own.
        """
        if not 0 <= start <= len(self):
            raise ValueError(
                f"start is {start}; allowed: 0 to {len(self)}, the batches of an epoch"
            )
        if self.shuffle:
            order = torch.randperm(self.size, generator=generator(self.seed, "order", epoch))
        else:
            order = torch.arange(self.size)
        batches = torch.split(order, self.batch_size)[start : len(self)]
        return self._draw(batches, epoch, start, augment=self.augment, rows=rows)

    def plain(self, rows: Rows | None = None) -> Iterator[Batch]:
        """Yield every example once, in order and un-augmented; the last batch may be partial."""
        batches = torch.split(torch.arange(self.size), self.batch_size)
        return self._draw(batches, epoch=0, start=0, augment=False, rows=rows)

    @abstractmethod
    def _draw(
        self, batches: Sequence[Tensor], epoch: int, start: int, *, augment: bool, rows: Rows | None
    ) -> Iterator[Batch]:
        """Make the batches of these indices; the first has the number ``start`` in its epoch."""


@dataclass(frozen=True)
class Data:
    """A loaded data set. Text models flatten their positions, so the loss is the same for all
    that the laboratory brings: cross-entropy of (N, ``classes``) logits and (N,) targets.
    Of a user's own data, shape and classes are not known."""

    name: str
    task: Literal["image", "text", "own"]
    input_shape: tuple[int, ...]
    """(channels, height, width) of an image, (context,) of a text."""
    classes: int
    """Number of classes; for a text, the size of its vocabulary."""
    train: Loader
    val: Loader | None
    test: Loader


@dataclass(frozen=True)
class ImageSet:
    """Images (N, H, W, C) as uint8 and their labels (N,) as int64."""

    images: Tensor
    labels: Tensor

    def take(self, index: Tensor) -> ImageSet:
        """The images of these indices."""
        return ImageSet(self.images.index_select(0, index), self.labels.index_select(0, index))


def every_fifth_apart(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Training and test images of one set: every fifth image of each class is a test image.

    No random number decides, so the split is the same on every machine and for ever.
    """
    is_test = torch.zeros(len(images.labels), dtype=torch.bool)
    for label in torch.unique(images.labels):
        is_test[torch.nonzero(images.labels == label)[4::5]] = True
    train, test = (torch.nonzero(chosen).squeeze(1) for chosen in (~is_test, is_test))
    return images.take(train), images.take(test)


class ImageLoader(Loader):
    """Images that fit in memory: kept on the device as uint8, augmented a whole batch at a time."""

    def __init__(
        self,
        images: ImageSet,
        request: DataRequest,
        normalize: Normalization,
        *,
        train: bool,
        flip: bool = True,
    ) -> None:
        super().__init__(len(images.labels), request, train=train)
        self._images = images.images.contiguous().to(request.device)
        self._labels = images.labels.to(request.device)
        self._normalize = normalize
        self._flip = flip

    def _draw(
        self, batches: Sequence[Tensor], epoch: int, start: int, *, augment: bool, rows: Rows | None
    ) -> Iterator[Batch]:
        # the usual four pixels of CIFAR's 32, and no more than an eighth of smaller images
        crop = ShiftAndFlip(self._images, padding=min(4, self._images.shape[1] // 8))
        for number, index in enumerate(batches, start):
            wanted = None if rows is None else rows(len(index))
            there = chosen(index, rows).to(self._labels.device)
            if augment:
                draw = generator(self.seed, "augment", epoch, number)
                images = crop.random(index, draw, flip=self._flip, rows=wanted)
            else:
                images = self._images.index_select(0, there)
            yield self._normalize(images), self._labels.index_select(0, there)


def image_data(
    request: DataRequest,
    train: ImageSet,
    test: ImageSet,
    normalize: Normalization,
    *,
    classes: int,
    flip: bool = True,
) -> Data:
    """Split, subset and wrap images that fit in memory.

    ``flip`` says whether a mirrored image keeps its label.
    """
    chosen, held_out = split_train(
        train.labels, train_size=request.train_size, val_size=request.val_size, seed=request.seed
    )
    tested = pick_test(test.labels, request.test_size)
    _, height, width, channels = train.images.shape
    return Data(
        name=request.name,
        task="image",
        input_shape=(channels, height, width),
        classes=classes,
        train=ImageLoader(train.take(chosen), request, normalize, train=True, flip=flip),
        val=ImageLoader(train.take(held_out), request, normalize, train=False)
        if request.val_size
        else None,
        test=ImageLoader(test.take(tested), request, normalize, train=False),
    )
