"""The winners as recipes that `lpsgd compare --recipes` and `lpsgd train --recipe` take."""

from __future__ import annotations

from pathlib import Path

from lpsgd.lab.formatting import fixed
from lpsgd.lab.search.outcome import Outcome, Winner
from lpsgd.lab.store.disk.files import write_text
from lpsgd.lab.store.disk.tomlio import toml_lines

# A comparison trains on all of the training set, with seeds of its own.
_LEFT_OUT = ("settings", "seed", "val_size", "closure", "create_graph")


def write_winners(outcome: Outcome, command: str) -> list[Path]:
    """Write ``winners/LABEL.toml`` for each competitor that has a winner."""
    written = []
    for winner in outcome.winners:
        path = outcome.sweep.folder / "winners" / f"{winner.label}.toml"
        write_text(path, winner_toml(outcome, winner, command))
        written.append(path)
    return written


def winner_toml(outcome: Outcome, winner: Winner, command: str) -> str:
    """One winner as a recipe."""
    sweep, trial = outcome.sweep, winner.trial
    competitor = next(c for c in sweep.competitors if c.label == winner.label)
    recipe = sweep.recipe(competitor, winner.settings)
    lines = [
        f"# Best of {winner.trials} trials of {winner.label}: number {trial.number}.",
        f"# Validation accuracy {fixed(trial.top1, 2)} %, NLL {fixed(trial.nll, 4)}, on "
        f"{recipe.val_size} images held out of the training set; the test set was not looked at.",
        f"# {_printable(' '.join(command.split()))}",
    ]
    if winner.edge:
        lines.append(f"# The learning rate is the {winner.edge} that was allowed: widen the range.")
    values = recipe.model_dump()
    lines += toml_lines({k: v for k, v in values.items() if k not in _LEFT_OUT and v != {}})
    lines += ["", "[settings]", *toml_lines(winner.settings)]
    return "\n".join(lines) + "\n"


def _printable(text: str) -> str:
    """``text`` for a comment, in which TOML allows no control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)
