"""What trials are judged by, in the words and on the scale of tables and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lpsgd.lab.formatting import fixed, short
from lpsgd.lab.search.method import Search


@dataclass(frozen=True)
class ScoreKind:
    """The merit of a trial: accuracy in percent, or a metric of the user's own.

    Figures draw merits, of which higher ones are better: a metric that is to be small is negated.
    """

    own: bool
    chosen_by: str
    """What decided: accuracy, NLL, or the metric's name."""
    axis: str
    columns: tuple[str, str]
    """The merit and the loss, in the tables for people."""
    keys: tuple[str, str]
    """The same, in files for programs."""
    lost: str
    """How much less than the best still counts as good."""
    point: float
    """What a percentage point is for accuracies."""
    floor: float
    """No merit is below it."""

    def merit_text(self, merit: float) -> str:
        """A merit for people."""
        return short(abs(merit)) if self.own else f"{fixed(merit, 2)} %"


def score_kind(how: Search, merits: Iterable[float]) -> ScoreKind:
    """How to show the scores of a search whose complete trials have these ``merits``."""
    if how.own_direction is None:
        return ScoreKind(
            own=False,
            chosen_by="accuracy" if how.metric == "top1" else "NLL",
            axis="validation accuracy [%]",
            columns=("validation accuracy [%]", "validation NLL"),
            keys=("val_top1", "val_nll"),
            lost="1 point",
            point=1.0,
            floor=0.0,
        )
    name = how.metric.replace("_", " ")
    negated = ", negated" if how.own_direction == "minimize" else ""
    return ScoreKind(
        own=True,
        chosen_by=name,
        axis=f"validation {name}{negated}",
        columns=(f"validation {name}", "validation loss"),
        keys=(f"val_{how.metric}", "val_loss"),
        lost="1 % of the best",
        point=abs(max(merits, default=1.0)) / 100 or 1e-12,
        floor=-math.inf,
    )
