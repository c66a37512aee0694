"""Batches of the user's data: a pure function of (seed, epoch, batch) wherever that is possible.

Tensors, data sets with a length, and torch's DataLoader with its usual samplers are read by index,
so that a run can resume at any batch. A loader with a sampler of its own, or whose data have no
index, is iterated as it is, seeded before each epoch; a run then resumes at the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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

from lpsgd.lab.data.loaders import Data, Loader, Rows, chosen
from lpsgd.lab.data.seeding import derive, generator
from lpsgd.lab.errors import UserError
from lpsgd.lab.own.batches import to_device
from lpsgd.lab.own.problem import Problem
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.numerics import rng_state, seed_all, set_rng_state


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


def own_data(problem: Problem, recipe: Recipe, device: torch.device, workers: int) -> Data:
    """The user's data as loaders."""
    train, val, test = splits(problem, recipe.seed)
    index, held_out = _train_index(train, val, recipe)
    make = _Maker(recipe, device, workers)
    loader = make(train, index, train=True)
    val_loader = None
    if val is not None:
        val_loader = make(val)
    elif recipe.val_size:
        val_loader = make(replace(train, name="val", shuffle=False), held_out)
    kept = None if recipe.test_size is None else torch.arange(min(recipe.test_size, len(test)))
    return Data("own", "own", (), 0, loader, val_loader, make(test, kept))


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


def _train_index(train: Source, val: Source | None, recipe: Recipe) -> tuple[Tensor | None, Tensor]:
    """Which examples are trained on, and which are held out of them; None is all."""
    wanted = recipe.val_size if val is None else 0
    if not wanted and recipe.train_size is None:
        return None, torch.empty(0, dtype=torch.long)
    if not train.indexed:
        raise UserError(
            "train is an iterable whose examples have no index, so that none can be held out: "
            "give val= instead of val_size, and no train_size"
        )
    kept = len(train) - wanted if recipe.train_size is None else recipe.train_size
    if wanted + kept > len(train) or kept < 1:
        raise UserError(
            f"train has {len(train)} examples; val_size={wanted} and "
            f"train_size={recipe.train_size} leave too few"
        )
    order = torch.randperm(len(train), generator=generator(recipe.seed, "validation"))
    return order[wanted : wanted + kept], order[:wanted]


@dataclass(frozen=True)
class _Maker:
    """Makes the loaders of one run."""

    recipe: Recipe
    device: torch.device
    workers: int

    def __call__(
        self, source: Source, index: Tensor | None = None, *, train: bool = False
    ) -> Loader:
        if not source.indexed:
            return StreamLoader(source, self.recipe, self.device, train=train)
        kind = TensorLoader if isinstance(source.items, tuple) else IndexedLoader
        workers = self.workers if source.workers is None else source.workers
        index = torch.arange(len(source)) if index is None else index
        return kind(source, index, self.recipe, self.device, workers, train=train)


class IndexedLoader(Loader):
    """A data set that is read by index. What an item draws is a function of (seed, epoch, item)."""

    def __init__(
        self,
        source: Source,
        index: Tensor,
        recipe: Recipe,
        device: torch.device,
        workers: int = 0,
        *,
        train: bool,
    ) -> None:
        self.size, self.seed = len(index), recipe.seed
        # a loader of the user's own keeps its batches, except for those that are trained on
        given = None if train else source.batch_size
        self.batch_size = given or recipe.batch_size
        self.shuffle = train and source.shuffle is not False
        self.drop_last = train and source.drop_last is not False
        self.augment = False
        if self.drop_last and self.batch_size > self.size:
            raise UserError(
                f"batch_size is {self.batch_size}; {source.name} has only {self.size} examples"
            )
        self._source, self._index, self._device, self._workers = source, index, device, workers

    def _draw(
        self, batches: Sequence[Tensor], epoch: int, start: int, *, augment: bool, rows: Rows | None
    ) -> Iterator[Any]:
        name = self._source.name
        keys = [
            [(derive(self.seed, name, epoch, i), i) for i in self._index[chosen(b, rows)].tolist()]
            for b in batches
        ]
        read = _Items(self._source.items, self._source.collate)
        if self._workers:
            # a generator of its own: a DataLoader draws from the global one
            found: Iterable[Any] = DataLoader(
                read,
                batch_size=None,
                sampler=keys,
                num_workers=self._workers,
                generator=torch.Generator(),
            )
        else:
            found = map(read.alone, keys)
        for batch in found:
            yield to_device(batch, self._device)


class TensorLoader(IndexedLoader):
    """Tensors of one length, kept on the device."""

    def __init__(self, source: Source, *arguments: Any, **options: Any) -> None:
        super().__init__(source, *arguments, **options)
        self._tensors = to_device(source.items, self._device)

    def _draw(
        self, batches: Sequence[Tensor], epoch: int, start: int, *, augment: bool, rows: Rows | None
    ) -> Iterator[Any]:
        for batch in batches:
            there = self._index[chosen(batch, rows)].to(self._device)
            yield tuple(tensor.index_select(0, there) for tensor in self._tensors)


class StreamLoader(Loader):
    """An iterable of batches that has no index: seeded before each epoch, iterated as it is."""

    resumable: ClassVar[bool] = False

    def __init__(
        self, source: Source, recipe: Recipe, device: torch.device, *, train: bool
    ) -> None:
        self._source, self._device, self._train = source, device, train
        self.seed, self.batch_size = recipe.seed, recipe.batch_size
        self.size = len(source) * recipe.batch_size  # about: only its batches can be counted
        self._batches = len(source)
        self.shuffle = self.drop_last = self.augment = False

    def __len__(self) -> int:
        return self._batches

    def epoch(self, epoch: int, start: int = 0, rows: Rows | None = None) -> Iterator[Any]:
        if start or rows is not None:
            raise UserError(
                f"{self._source.name} is an iterable without an index, which several processes "
                "cannot share; give a Dataset"
            )
        return self._iterate(epoch)

    def plain(self, rows: Rows | None = None) -> Iterator[Any]:
        return self.epoch(0, rows=rows)

    def _iterate(self, epoch: int) -> Iterator[Any]:
        before, loader, given = rng_state(), self._source.items, 0
        kept = generator_states(loader)
        for part in _parts(loader):
            if (set_epoch := getattr(part, "set_epoch", None)) is not None:
                set_epoch(epoch)
            if isinstance(own := getattr(part, "generator", None), torch.Generator):
                own.manual_seed(derive(self.seed, "generator", epoch) % 2**63)
        seed_all(derive(self.seed, self._source.name, epoch) % 2**63)
        try:
            for given, batch in enumerate(loader, 1):
                if given > self._batches:
                    break
                yield to_device(batch, self._device)
        finally:
            for own, state in kept:  # each epoch seeds them anew: they stay as the user left them
                own.set_state(state)
            if not self._train:  # scoring changes nothing; training draws on from here
                set_rng_state(before)
        if given < self._batches:
            raise UserError(
                f"{self._source.name} gave {given} batches in epoch {epoch + 1}, and its length "
                f"is {self._batches}: it must be an iterable that can be iterated again"
            )

    def _draw(
        self, batches: Sequence[Tensor], epoch: int, start: int, *, augment: bool, rows: Rows | None
    ) -> Iterator[Any]:
        raise NotImplementedError  # there is no index


class _Items(Dataset[Any]):
    """Batches as the items of a data set, so that a DataLoader's workers make whole ones."""

    def __init__(self, items: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._items, self._collate = items, collate

    def __getitem__(self, keys: Sequence[tuple[int, int]]) -> Any:
        found = []
        for seed, index in keys:
            seed_all(seed % 2**63)
            found.append(self._items[index])
        return self._collate(found)

    def alone(self, keys: Sequence[tuple[int, int]]) -> Any:
        """The batch without a worker process: what it draws is not drawn from training."""
        before = rng_state()
        try:
            return self[keys]
        finally:
            set_rng_state(before)


def _parts(loader: Any) -> tuple[Any, ...]:
    return loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)


def generator_states(loader: Any) -> list[tuple[torch.Generator, Tensor]]:
    """The generators that ``loader`` itself draws from, and their states."""
    found = [getattr(part, "generator", None) for part in _parts(loader)]
    return [(own, own.get_state()) for own in found if isinstance(own, torch.Generator)]


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
