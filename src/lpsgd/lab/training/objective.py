"""What a batch means: the loss that is trained, and the scores that are reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Network = Callable[..., Any]


class TrainLoss(NamedTuple):
    """The loss of some rows with its graph, and what an epoch adds up over their examples."""

    loss: Tensor
    """What is differentiated: a mean over the rows."""
    total: Tensor
    """The loss as it is reported, summed over the examples."""
    correct: Tensor | None
    """How many examples were predicted right, where that has a meaning."""


class Objective(Protocol):
    """The loss and the scores of a kind of batch.

    A batch has rows, which may be divided among processes and into parts, and a row has examples,
    over which means are taken: a row of text has as many as it has positions.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The scores, in the order of `scores`."""

    @property
    def loss_name(self) -> str:
        """The one of ``names`` whose value tells that a run diverged."""

    def rows(self, batch: Any) -> int:
        """How many rows ``batch`` has."""

    def examples_per_row(self, batch: Any) -> int:
        """How many examples each row has."""

    def split(self, batch: Any, sizes: Sequence[int]) -> list[Any]:
        """Cut ``batch`` into parts of so many rows."""

    def train(self, network: Network, batch: Any) -> TrainLoss:
        """The loss of ``batch``."""

    def scores(self, network: Network, batch: Any) -> Tensor:
        """The sum of each score over the examples of ``batch``, and last their number."""


@dataclass(frozen=True)
class Classification:
    """Cross-entropy of (inputs, targets); the targets of a text are those of all its positions."""

    label_smoothing: float = 0.0
    names: tuple[str, ...] = ("nll", "top1", "top5")
    loss_name: str = "nll"

    def rows(self, batch: tuple[Tensor, Tensor]) -> int:
        return len(batch[0])

    def examples_per_row(self, batch: tuple[Tensor, Tensor]) -> int:
        inputs, targets = batch
        return len(targets) // len(inputs)

    def split(
        self, batch: tuple[Tensor, Tensor], sizes: Sequence[int]
    ) -> list[tuple[Tensor, Tensor]]:
        inputs, targets = batch
        examples = self.examples_per_row(batch)
        goals = torch.split(targets, [size * examples for size in sizes])
        return list(zip(torch.split(inputs, list(sizes)), goals, strict=True))

    def train(self, network: Network, batch: tuple[Tensor, Tensor]) -> TrainLoss:
        inputs, targets = batch
        logits = network(inputs)
        loss = cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        with torch.no_grad():
            nll = cross_entropy(logits.float(), targets) if self.label_smoothing else loss
            correct = (logits.argmax(1) == targets).sum()
        return TrainLoss(loss, nll.detach() * len(targets), correct)

    def scores(self, network: Network, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Negative log-likelihoods, and accuracies in percent."""
        inputs, targets = batch
        logits = network(inputs).float()
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices == targets[:, None]
        nll = cross_entropy(logits, targets, reduction="sum").double()
        right, near = 100 * best[:, 0].sum().double(), 100 * best.sum().double()
        return torch.stack([nll, right, near, torch.full_like(nll, len(targets))])
