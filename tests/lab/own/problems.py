"""Small problems of the user's own, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset


def classes(count: int = 96) -> tuple[Tensor, Tensor]:
    """Points of which the class can be told."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] + x[:, 1] > 0).long()


def numbers(count: int = 96) -> tuple[Tensor, Tensor]:
    """Points with a number that depends on them."""
    x, _ = classes(count)
    return x, x.sum(1)


def classifier() -> nn.Module:
    """A network with dropout, which draws random numbers while it trains."""
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 2))


class Noisy(Dataset[Any]):
    """Items that draw from every global generator, as augmentations do."""

    def __init__(self, count: int = 96) -> None:
        self.x, self.y = classes(count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.randn(6) * 0.1 + float(np.random.rand()) * 0.01
        return self.x[index] + noise, int(self.y[index])


class Stream(IterableDataset[Any]):
    """Examples without an index, in an order drawn anew for each epoch."""

    def __init__(self, count: int = 96) -> None:
        self.x, self.y = classes(count)

    def __len__(self) -> int:
        return len(self.x)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.randperm(len(self.x)).tolist():
            yield self.x[index], self.y[index]
