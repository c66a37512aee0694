"""How to search: sampler, pruner, score and budget, by name.

Without optuna, so that a misspelt name is answered at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lpsgd.lab.errors import UserError
from lpsgd.lab.search.space import Competitor

SAMPLERS = ("grid", "tpe", "random")
PRUNERS = ("none", "median", "halving")
Direction = Literal["maximize", "minimize"]
# The scores to choose by, of the validation split.
DIRECTIONS: dict[str, Direction] = {"top1": "maximize", "nll": "minimize"}
# What a trial that diverged counts with. Finite, because pruners and samplers take differences.
WORST = {"top1": 0.0, "nll": 1e6}
REDUCTION = 3  # a rung is a third of the next, and halving keeps a third
DEFAULT_TRIALS = 20


@dataclass(frozen=True)
class Search:
    """How to search; with the spaces and the recipe, everything that decides the result."""

    sampler: str
    pruner: str
    metric: str
    trials: int
    round_size: int
    seed: int
    epochs: int
    seeds: int = 1  # runs of each trial, whose scores are averaged
    own_direction: Direction | None = None  # if the metric is one of the user's own

    @property
    def direction(self) -> Direction:
        """Whether more is better."""
        return self.own_direction or DIRECTIONS[self.metric]

    @property
    def sign(self) -> int:
        """1 if more is better, else -1."""
        return 1 if self.direction == "maximize" else -1

    @property
    def worst(self) -> float:
        """What a trial that diverged counts with."""
        return WORST[self.metric] if self.own_direction is None else -self.sign * 1e6

    @property
    def worst_merit(self) -> float:
        """The same on the scale of figures, where more is better."""
        return 0.0 if self.own_direction is None else -1e6

    def rungs(self) -> list[int]:
        """The epochs after which trials are scored; pruning is decided at all but the last.

        >>> Search("tpe", "halving", "top1", 8, 4, 0, 20).rungs()
        [2, 6, 20]
        """
        if self.pruner == "none":
            return [self.epochs]
        earlier = [self.epochs // REDUCTION**k for k in (2, 1)]
        return [*dict.fromkeys(e for e in earlier if e >= 1), self.epochs]

    def rounds(self) -> list[range]:
        """The numbers of the trials that are asked for together."""
        # what neither sampler nor pruner learns from need not wait for one another
        size = self.trials if self.sampler != "tpe" and self.pruner == "none" else self.round_size
        return [range(k, min(k + size, self.trials)) for k in range(0, self.trials, size)]


def count_trials(competitors: Sequence[Competitor], sampler: str, asked: int | None) -> int:
    """How many trials each competitor gets: as many for each, none of a grid twice."""
    if sampler != "grid":
        return asked or DEFAULT_TRIALS
    sizes = {c.label: _grid_size(c) for c in competitors}
    least = min(sizes, key=sizes.__getitem__)
    if asked is not None and asked > sizes[least]:
        raise UserError(
            f"--trials {asked}: the grid of {least} has {sizes[least]} combinations, and every "
            f"optimizer gets as many trials; give --trials {sizes[least]} or fewer, widen that "
            "grid, or search ranges with --sampler tpe or random"
        )
    return asked or sizes[least]


def _grid_size(competitor: Competitor) -> int:
    size = math.prod(map(len, competitor.grids().values()))
    if size > 1_000_000:
        raise UserError(f"{competitor.label}: a grid of {size} combinations; at most a million")
    return size
