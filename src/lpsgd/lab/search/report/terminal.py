"""The outcome of a sweep on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from lpsgd.lab.formatting import MISSING, fixed
from lpsgd.lab.labels import FoldedLabel
from lpsgd.lab.search.outcome import Outcome, pruned_text
from lpsgd.lab.search.report.page import held_out, no_winner_text, settings_text


def render_winners(outcome: Outcome, console: Console) -> None:
    """Print the winners, and what to be careful about."""
    kind, recipe = outcome.kind, outcome.sweep.recipe_of_all()
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("optimizer", min_width=8)
    for name in (
        *(name.replace(" ", "\n", 1).removesuffix(" [%]") for name in kind.columns),
        *("trials", "pruned", "diverged"),
        "good lr\n(decades)",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for winner in outcome.winners:
        table.add_row(
            FoldedLabel(winner.label),
            kind.merit_text(winner.trial.top1),
            fixed(winner.trial.nll, 4),
            str(winner.trials),
            str(winner.pruned),
            str(winner.diverged),
            MISSING if winner.region is None else winner.region.shown,
        )
    console.print(table)
    console.print()
    for winner in outcome.winners:
        console.print(f"{winner.label}: {settings_text(winner)}", markup=False)
    console.print(
        f"\nChosen by validation {kind.chosen_by} on {held_out(recipe)}; the test set was not "
        f"used. Good lr: width of the region that loses at most {kind.lost}."
        f"{pruned_text(outcome)}",
        style="dim",
        markup=False,
    )
    for label in outcome.without_winner:
        console.print(no_winner_text(outcome, label), style="red", markup=False)
    if any(winner.edge for winner in outcome.winners):
        console.print("Widen the range of learning rates: the best may be outside.", style="yellow")
