"""The user's loss and metrics as an objective of training."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpsgd.lab.errors import UserError
from lpsgd.lab.own.batches import count_rows, split_rows
from lpsgd.lab.own.losses import default_loss, top1
from lpsgd.lab.own.problem import OwnMetric, Problem
from lpsgd.lab.training.objective import Network, TrainLoss

TARGETS = ("labels", "label", "targets", "target", "y")
"""The keys under which a batch that is a mapping may hold its targets."""


class Outcome(NamedTuple):
    """What a network makes of a batch."""

    loss: Tensor
    output: Any
    target: Any
    values: Mapping[str, Any]
    """What a custom step returned beside the loss."""


@dataclass(frozen=True)
class OwnObjective:
    """Means of the user's loss and metrics over the rows of each batch."""

    problem: Problem
    metrics: Mapping[str, OwnMetric]
    loss_name: str = "loss"

    @classmethod
    def of(cls, problem: Problem, directions: Mapping[str, Any]) -> OwnObjective:
        """The objective with the metrics of which the recipe tells."""
        metrics = problem.own_metrics()
        if "top1" in directions and "top1" not in metrics:  # classes, and no metric was given
            metrics = {"top1": OwnMetric(top1, "max"), **metrics}
        return cls(problem, metrics)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    def rows(self, batch: Any) -> int:
        return count_rows(batch)

    def examples_per_row(self, batch: Any) -> int:
        return 1

    def split(self, batch: Any, sizes: Sequence[int]) -> list[Any]:
        return split_rows(batch, sizes)

    def train(self, network: Network, batch: Any) -> TrainLoss:
        loss = self.outcome(network, batch).loss
        return TrainLoss(loss, loss.detach().double() * self.rows(batch), None)

    def scores(self, network: Network, batch: Any) -> Tensor:
        outcome, rows = self.outcome(network, batch), self.rows(batch)
        found = [self._score(name, outcome) for name in self.names]
        device = outcome.loss.device
        sums = [score.to(device, torch.float64) * rows for score in found]
        return torch.stack([*sums, torch.tensor(float(rows), dtype=torch.float64, device=device)])

    def _score(self, name: str, outcome: Outcome) -> Tensor:
        measure = self.metrics[name].measure
        if measure is not None:
            score: Any = measure(outcome.output, outcome.target)
        elif name == "loss":
            score = outcome.loss
        elif name in outcome.values:
            score = outcome.values[name]
        else:
            raise UserError(
                f"metrics: {name!r} has no function, and step returned no value of this name "
                f"(it returned {', '.join(['loss', *outcome.values])})"
            )
        number = torch.as_tensor(score).detach()
        if number.numel() != 1:
            raise UserError(
                f"metrics: {name} is a tensor of shape {tuple(number.shape)}; allowed: one number"
            )
        return number.reshape(())

    def outcome(self, network: Network, batch: Any) -> Outcome:
        """What ``network`` makes of ``batch``, whose form decides how it is called."""
        problem = self.problem
        if problem.step is not None:
            outcome = _of_step(problem.step(network, batch))
        elif isinstance(batch, Mapping):
            outcome = _of_mapping(problem, network, batch)
        elif isinstance(batch, Sequence) and len(batch) > 1:
            *inputs, target = batch
            output = _plain(_call(network, inputs))
            outcome = Outcome((problem.loss or default_loss)(output, target), output, target, {})
        else:
            raise UserError(
                f"train: a batch is a {type(batch).__name__}; allowed: (inputs, ..., target), a "
                "mapping, or anything else with step=, a function (model, batch)"
            )
        if not isinstance(outcome.loss, Tensor) or outcome.loss.ndim:
            got = outcome.loss
            what = f"of shape {tuple(got.shape)}" if isinstance(got, Tensor) else repr(got)
            raise UserError(f"loss is {what}; allowed: a tensor with one number, such as a mean")
        return outcome


def _call(network: Network, inputs: Sequence[Any]) -> Any:
    """Several inputs are several arguments, whether they lie in a tuple of their own or not."""
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return network(**inputs[0])
    if len(inputs) == 1 and isinstance(inputs[0], tuple | list):
        return network(*inputs[0])
    return network(*inputs)


def _of_step(found: Any) -> Outcome:
    if isinstance(found, Mapping):
        if "loss" not in found:
            raise UserError(f"step returned {', '.join(map(str, found))} and no 'loss'")
        values = {name: value for name, value in found.items() if name != "loss"}
        return Outcome(found["loss"], None, None, values)
    return Outcome(found, None, None, {})


def _of_mapping(problem: Problem, network: Network, batch: Mapping[str, Any]) -> Outcome:
    """As Hugging Face's models are called: by names, and they know their loss."""
    key = next((name for name in TARGETS if name in batch), None)
    target = None if key is None else batch[key]
    if problem.loss is None and _takes(network, key):
        output = network(**batch)
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if loss is not None:
            return Outcome(loss, _plain(output), target, {})
    if key is None:
        raise UserError(
            f"train: a batch has the keys {', '.join(map(str, batch))} and none of "
            f"{', '.join(TARGETS)}; give step=, a function (model, batch)"
        )
    inputs = {name: value for name, value in batch.items() if name != key}
    output = _plain(network(**inputs))
    return Outcome((problem.loss or default_loss)(output, target), output, target, {})


def _takes(network: Any, key: str | None) -> bool:
    """Whether the network takes the targets too, to compute its loss."""
    forward = getattr(network, "forward", network)
    parameters = inspect.signature(forward).parameters.values()
    return any(p.name == key or p.kind is p.VAR_KEYWORD for p in parameters)


def _plain(output: Any) -> Any:
    """The logits of an output that has them among other things."""
    return getattr(output, "logits", output)
