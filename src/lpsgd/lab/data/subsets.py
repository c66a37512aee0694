"""Stratified subsets and the validation split."""

from __future__ import annotations

import torch
from torch import Tensor

from lpsgd.lab.data.seeding import generator
from lpsgd.lab.errors import UserError


def stratified(labels: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Indices of ``count`` examples, in rising order, in the proportions of the classes.

    Each class gets its share rounded down; what is left goes to the largest remainders (in
    integers, so that no rounding of floats decides).
    """
    per_class = torch.bincount(labels)
    shares = per_class * count
    quota = shares // len(labels)
    missing = count - int(quota.sum())
    remainders = shares % len(labels)
    quota[torch.argsort(remainders, descending=True, stable=True)[:missing]] += 1

    chosen = []
    for label, wanted in enumerate(quota.tolist()):
        members = torch.nonzero(labels == label).squeeze(1)
        chosen.append(members[torch.randperm(len(members), generator=draw)[:wanted]])
    return torch.cat(chosen).sort().values


def split_train(
    labels: Tensor, *, train_size: int | None, val_size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Indices of the training and of the validation examples; they never overlap.

    The validation examples are drawn first, so that they are the same for every ``train_size``.
    """
    total = len(labels)
    if not 0 <= val_size < total:
        raise UserError(f"val_size is {val_size}; allowed: 0 to {total - 1} of {total} examples")
    left = total - val_size
    if train_size is not None and not 1 <= train_size <= left:
        raise UserError(
            f"train_size is {train_size}; allowed: 1 to {left}"
            f" ({total} training examples, {val_size} of them held out for validation)"
        )
    val = stratified(labels, val_size, generator(seed, "validation"))
    is_val = torch.zeros(total, dtype=torch.bool)
    is_val[val] = True
    train = torch.nonzero(~is_val).squeeze(1)
    if train_size is not None and train_size < left:
        train = train[stratified(labels[train], train_size, generator(seed, "subset"))]
    return train, val


def pick_test(labels: Tensor, test_size: int | None) -> Tensor:
    """Indices of the test examples; independent of the run's seed."""
    if test_size is None:
        return torch.arange(len(labels))
    if not 1 <= test_size <= len(labels):
        raise UserError(f"test_size is {test_size}; allowed: 1 to {len(labels)}")
    return stratified(labels, test_size, generator(0, "test"))
