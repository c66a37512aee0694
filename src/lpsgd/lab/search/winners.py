"""The winners as recipes that `lpsgd compare --recipes` and `lpsgd train --recipe` take."""

from __future__ import annotations

from pathlib import Path

from lpsgd.lab.formatting import fixed
from lpsgd.lab.search.outcome import Outcome, Winner
from lpsgd.lab.store.files import write_text
from lpsgd.lab.store.tomlio import toml_key, toml_value

# A comparison trains on all of the training set, with seeds of its own.
_LEFT_OUT = ("settings", "seed", "val_size", "closure", "create_graph")


def write_winners(outcome: Outcome, command: str) -> list[Path]:
    """Write ``winners/LABEL.toml`` for each competitor that has a winner."""
    written = []
    for winner in outcome.winners:
        path = outcome.sweep.folder / "winners" / f"{winner.label}.toml"
        write_text(path, to_toml(outcome, winner, command))
        written.append(path)
    return written


def to_toml(outcome: Outcome, winner: Winner, command: str) -> str:
    """One winner as a recipe; what TOML cannot say (none) is left out, which means the same."""
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
    lines += [
        f"{name} = {toml_value(value)}"
        for name, value in values.items()
        if name not in _LEFT_OUT and value is not None and value != {}
    ]
    lines += ["", "[settings]"]
    lines += [
        f"{toml_key(name)} = {toml_value(value)}"
        for name, value in winner.settings.items()
        if value is not None
    ]
    return "\n".join(lines) + "\n"


def _printable(text: str) -> str:
    """``text`` for a comment, in which TOML allows no control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)
