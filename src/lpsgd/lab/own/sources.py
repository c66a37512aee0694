"""What the user gave as data, brought into one form: by index where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from lpsgd.lab.errors import UserError
from lpsgd.lab.own.problem import Problem


@dataclass(frozen=True)
class Source:
    """One split as the user gave it. What is None the recipe or the split decides."""

    name: str
    items: Any
    """Tensors of one length, a data set with an index, or an iterable of batches."""
    collate: Callable[[list[Any]], Any] = default_collate
    batch_size: int | None = None
    shuffle: bool | None = None
    drop_last: bool | None = None
    workers: int | None = None

    @property
    def indexed(self) -> bool:
        """Whether any example can be had by its index."""
        return isinstance(self.items, tuple) or not _is_stream(self.items)

    def __len__(self) -> int:
        """The examples, or the batches of an iterable."""
        items = self.items[0] if isinstance(self.items, tuple) else self.items
        try:
            return len(items)
        except TypeError as error:
            raise UserError(
                f"{self.name} has no length, which the learning rate's schedule needs: "
                f"give its class a __len__ ({error})"
            ) from None


def splits(problem: Problem, seed: int) -> tuple[Source, Source | None, Source]:
    """Training, validation and test data; functions of the seed are called."""
    train, val, test = problem.train, problem.val, problem.test
    if is_function(train):
        train = train(seed)
        if test is None and isinstance(train, tuple | list) and not _are_arrays(train):
            if len(train) not in (2, 3):
                raise UserError(
                    f"train: the function returned {len(train)} loaders; allowed: "
                    "(train, test) or (train, val, test)"
                )
            train, test, val = train[0], train[-1], train[1] if len(train) == 3 else val
    val, test = (given(seed) if is_function(given) else given for given in (val, test))
    if test is None:
        raise UserError("test is missing: what is compared is measured on data not trained on")
    return (
        _source("train", train, problem),
        None if val is None else _source("val", val, problem),
        _source("test", test, problem),
    )


def _source(name: str, given: Any, problem: Problem) -> Source:
    collate = problem.collate or default_collate
    if isinstance(given, TensorDataset) and problem.collate is None:
        given = given.tensors
    if isinstance(given, tuple | list) and _are_arrays(given):
        source = Source(name, _tensors(name, given))
    elif isinstance(given, DataLoader):
        source = _loader_source(name, given)
    elif hasattr(given, "__getitem__") or hasattr(given, "__iter__"):
        source = Source(name, given, collate)
    else:
        raise UserError(
            f"{name} is a {type(given).__name__}; allowed: a Dataset, a DataLoader, "
            "(inputs, targets) as tensors, or a function of the seed that returns one"
        )
    if len(source) == 0:
        raise UserError(
            f"{name} is empty: there is nothing to {'train' if name == 'train' else 'score'} on"
        )
    return source


def _loader_source(name: str, loader: DataLoader[Any]) -> Source:
    """A DataLoader with torch's own samplers can be read by index; any other is iterated."""
    usual = type(loader.batch_sampler) is BatchSampler and loader.worker_init_fn is None
    sampler = loader.sampler
    ordered = type(sampler) is SequentialSampler
    shuffled = (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    if not usual or not (ordered or shuffled) or _is_stream(loader.dataset):
        return Source(name, loader)
    tensors = loader.dataset.tensors if isinstance(loader.dataset, TensorDataset) else None
    plain = tensors is not None and loader.collate_fn is default_collate
    return Source(
        name,
        tensors if plain else loader.dataset,
        loader.collate_fn,
        batch_size=loader.batch_size,
        shuffle=shuffled,
        drop_last=loader.drop_last,
        workers=loader.num_workers,
    )


def is_function(given: Any) -> bool:
    """Whether ``given`` is a function of the seed, and not data."""
    kinds = (Dataset, DataLoader, str)
    return callable(given) and not isinstance(given, kinds) and not hasattr(given, "__getitem__")


def _is_stream(items: Any) -> bool:
    return isinstance(items, DataLoader | IterableDataset) or not hasattr(items, "__getitem__")


def _are_arrays(given: Sequence[Any]) -> bool:
    return bool(given) and all(isinstance(part, Tensor | np.ndarray) for part in given)


def _tensors(name: str, given: Sequence[Any]) -> tuple[Tensor, ...]:
    tensors = tuple(torch.as_tensor(part) for part in given)
    if len({len(tensor) for tensor in tensors}) > 1 or len(tensors) < 2:
        sizes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise UserError(f"{name} has tensors of shapes {sizes}; allowed: two or more of one length")
    return tensors
