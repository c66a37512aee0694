"""Batches of the user's data: a pure function of (seed, epoch, batch) wherever that is possible.

Tensors, data sets with a length, and torch's DataLoader with its usual samplers are read by index,
so that a run can resume at any batch. A loader with a sampler of its own, or whose data have no
index, is iterated as it is, seeded before each epoch; a run then resumes at the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lpsgd.lab.data.loaders import Data, Loader, Rows, chosen
from lpsgd.lab.data.seeding import derive, generator
from lpsgd.lab.errors import UserError
from lpsgd.lab.own.batches import to_device
from lpsgd.lab.own.problem import Problem
from lpsgd.lab.own.sources import Source, splits
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.numerics import rng_state, seed_all, set_rng_state


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
            # not torch.manual_seed, which asks every kind of device: 0.1 ms for each item
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed % 2**63)
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
