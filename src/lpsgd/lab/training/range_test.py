"""The learning-rate range test (Smith, 2017): the rate rises with every step, and the loss tells.

At first nothing happens, then the loss falls, and at last the steps are too long and it rises.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from lpsgd.lab.errors import LabError
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training import precision
from lpsgd.lab.training.build import load_data
from lpsgd.lab.training.numerics import numerics, rng_state, set_rng_state
from lpsgd.lab.training.options import RunOptions
from lpsgd.lab.training.trainer import Diverged, Trainer

if TYPE_CHECKING:
    from lpsgd.lab.data import Loader
    from lpsgd.lab.own.problem import Problem

DECADES = 3  # to either side of the rate that the optimizer begins with
_SMOOTHING = 0.8  # weight of the losses before
_LEAST_STEPS = 10  # before the loss may end the test
_WAY = 1 / 3  # from the rate of half of the fall to that of the lowest loss, in logarithms
_RISE = 0.5  # above the lowest smoothed loss, as a share of it, or of the fall


@dataclass(frozen=True)
class RangeTest:
    """The rates that were tried, one for each step, and the losses before these steps."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    complete: bool
    """Whether every rate up to the highest was tried, because the loss never rose much."""


@dataclass(frozen=True)
class Reading:
    """What a range test says, as places in its lists."""

    half: int
    """Where half of the fall of the smoothed loss was reached."""
    lowest: int
    """Where the smoothed loss was lowest."""
    lr: float
    """The suggestion, between the rates of both."""


def range_test(
    recipe: Recipe,
    *,
    steps: int,
    low: float | None = None,
    high: float | None = None,
    options: RunOptions | None = None,
    problem: Problem | None = None,
) -> RangeTest:
    """Train for ``steps`` steps at rates from ``low`` to ``high``, or until the loss rises.

    The global generators stay as they are, and nothing is written.
    """
    before = rng_state()
    # so long that p, and whatever else moves in the course of training, stays where it begins
    recipe = recipe.with_changes(epochs=100 * steps)
    try:
        with numerics(recipe) as device:
            precision.require(recipe.precision, device)
            data = load_data(recipe, options or RunOptions(), device, problem)
            trainer = Trainer(recipe, data, device, problem=problem)
            return _rise(trainer, data.train, steps, low, high)
    finally:
        set_rng_state(before)


def _rise(
    trainer: Trainer, loader: Loader, steps: int, low: float | None, high: float | None
) -> RangeTest:
    base = trainer.base_lrs[0]
    start, end = low or base / 10**DECADES, high or base * 10**DECADES
    # the groups keep the proportions of their rates
    factors = [start / base * (end / start) ** (step / (steps - 1)) for step in range(steps)]
    trainer.lr_factor = lambda step: factors[step]  # type: ignore[assignment]
    lrs: list[float] = []
    losses: list[float] = []
    with closing(_batches(loader)) as batches:
        for factor, batch in zip(factors, batches, strict=False):
            trainer.start_epoch()  # so that its sums are those of this step
            try:
                trainer.train_step(batch)
                trainer.settle()
            except Diverged:
                return RangeTest(tuple(lrs), tuple(losses), complete=False)
            lrs.append(base * factor)
            losses.append(trainer.sums.nll.item() / trainer.sums.examples)
            if _rose(losses):
                return RangeTest(tuple(lrs), tuple(losses), complete=False)
    return RangeTest(tuple(lrs), tuple(losses), complete=True)


def _batches(loader: Loader) -> Generator[Any, None, None]:
    for epoch in count():
        yield from loader.epoch(epoch)


def smoothed(losses: Sequence[float]) -> list[float]:
    """The average over the losses so far, of which the last ones count most.

    >>> [round(value, 3) for value in smoothed([1.0, 1.0, 0.0])]
    [1.0, 1.0, 0.59]
    """
    average, found = 0.0, []
    for number, loss in enumerate(losses, 1):
        average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
        found.append(average / (1 - _SMOOTHING**number))
    return found


def _rose(losses: Sequence[float]) -> bool:
    """Whether the smoothed loss is far above its lowest value."""
    values = smoothed(losses)
    best = min(values)
    allowed = _RISE * max(abs(best), values[0] - best)
    return len(values) > _LEAST_STEPS and values[-1] - best > allowed


def read_test(test: RangeTest) -> Reading:
    """The rate that the test suggests: between half of the fall and the lowest loss.

    Where half of the fall was reached, steps are long enough to learn; where the loss is lowest,
    they begin to be too long. On a logarithmic axis a third of the way is taken: a rate that is too
    low trains more slowly, one that is too high not at all.
    """
    values = smoothed(test.losses)
    lowest = min(range(len(values)), key=values.__getitem__, default=0)
    if not lowest:
        last = f" up to {test.lrs[-1]:.2g}" if test.lrs else ""
        raise LabError(
            f"the loss did not fall at any learning rate{last}: give a lower `low`, more steps, or "
            "larger batches; or the first rate was too high, or there is nothing to learn"
        )
    goal = (values[0] + values[lowest]) / 2
    half = next(place for place, value in enumerate(values) if value <= goal)
    learns, breaks = math.log(test.lrs[half]), math.log(test.lrs[lowest])
    return Reading(half, lowest, _rounded(math.exp(learns + _WAY * (breaks - learns))))


def _rounded(value: float) -> float:
    """Two digits: more would promise too much."""
    return float(f"{value:.1e}")
