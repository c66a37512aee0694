"""The data sets: what there is, where it lies, how it becomes batches.

>>> from lpsgd.lab.data import load
>>> data = load("digits", batch_size=64)
>>> data.input_shape, data.classes, data.train.size, data.test.size
((1, 32, 32), 10, 1442, 355)
>>> images, labels = next(data.train.epoch(0))
>>> tuple(images.shape), tuple(labels.shape)
((64, 1, 32, 32), (64,))

Batch ``b`` of epoch ``e`` is a pure function of (seed, e, b): a run that was stopped calls
``data.train.epoch(e, start=b)`` and gets the very bytes that it would have got.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.data.catalogue import check_options, data_root, names

if TYPE_CHECKING:
    from lpsgd.lab.data.loaders import Data, Loader

__all__ = ["Data", "Loader", "data_root", "load", "names"]


def load(
    name: str,
    root: str | Path | None = None,
    *,
    seed: int = 0,
    train_size: int | None = None,
    val_size: int = 0,
    test_size: int | None = None,
    batch_size: int = 128,
    augment: bool = True,
    device: str = "cpu",
    workers: int = 0,
    **options: Any,
) -> Data:
    """Load a data set by its name.

    Args:
        name: one of :func:`names`.
        root: the folder of the data sets; default $LPSGD_DATA, else the user's cache folder.
        seed: decides the validation split, the training subset, the order and the augmentation.
        train_size: how many training examples to keep, in the proportions of the classes.
        val_size: how many training examples to hold out for validation (never test examples); they
            are the same ones whatever ``train_size`` is.
        test_size: how many test examples to keep; the same ones for every seed, so that the
            accuracies of different seeds are comparable.
        batch_size: examples per batch; the training set drops the last, partial batch.
        augment: whether training images are randomly cropped and flipped.
        device: where the batches are made (in-memory data sets live there as a whole).
        workers: processes that decode images (``imagefolder`` only); they do not change a byte.
        options: the data set's own settings, see ``lpsgd data list``.
    """
    # torch and the module of this one data set are imported here, so that the command line starts
    # without them
    from lpsgd.lab.data.loaders import DataRequest

    description = check_options(name, options)
    request = DataRequest(
        name=name,
        root=data_root(root),
        seed=seed,
        train_size=train_size,
        val_size=val_size,
        test_size=test_size,
        batch_size=batch_size,
        augment=augment,
        device=device,
        workers=workers,
    )
    module = import_module(f"lpsgd.lab.data.sets.{description.module}")
    data: Data = module.load(request, **options)
    return data


def __getattr__(name: str) -> Any:
    if name in ("Data", "Loader"):
        return getattr(import_module("lpsgd.lab.data.loaders"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
