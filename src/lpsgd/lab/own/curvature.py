"""The user's own loss as `lpsgd.curvature` takes it: ``loss(model(inputs), targets)``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lpsgd.lab.own.batches import count_rows
from lpsgd.lab.training.objective import Objective


class LossModule(nn.Module):
    """A model whose output on a batch is its loss, however the user computes that."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = objective

    def forward(self, *parts: Any, **named: Any) -> Tensor:
        """The loss of the batch that is given in its parts."""
        return self._objective.train(self.model, named or parts).loss


def loss_itself(output: Tensor, targets: Any) -> Tensor:
    """The loss of what `LossModule` returns."""
    return output


def whole_batches(batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """Each batch as inputs, targets included; in their place, as many zeros as there are rows."""
    for batch in batches:
        inputs = dict(batch) if isinstance(batch, Mapping) else tuple(batch)
        yield inputs, torch.zeros(count_rows(batch))
