"""A sweep as a folder of figures, numbers and recipes and as one page that needs no other file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from lpsgd.lab.formatting import fixed, setting_text
from lpsgd.lab.recipe import SEARCH_NOTE, Recipe
from lpsgd.lab.report.document import (
    Attachment,
    Document,
    Table,
    text,
    write_document,
    write_document_page,
)
from lpsgd.lab.report.source import Source
from lpsgd.lab.search.outcome import Outcome, Winner, pruned_text
from lpsgd.lab.search.report.figures import all_figures, searched_names
from lpsgd.lab.store.disk.files import write_text
from lpsgd.lab.store.disk.jsonio import write_json
from lpsgd.lab.store.disk.tomlio import toml_lines

_NAME = "report"
# A comparison trains on all of the training set, with seeds of its own.
_LEFT_OUT = ("settings", "seed", "val_size", "closure", "create_graph", "problem")
_PRUNERS = {
    "none": "no trial was stopped early",
    "median": "stopped early if below the median of earlier trials",
    "halving": "stopped early unless among the best third at a rung",
}
_SAMPLERS = {
    "grid": "a random subset of the grid, without repetition",
    "tpe": "the tree-structured Parzen estimator",
    "random": "drawn at random",
}


def write_report(outcome: Outcome, command: str) -> Path:
    """Write ``outcome.json``, ``report/`` and ``index.html``; return the page."""
    folder = outcome.sweep.folder
    document = make_document(outcome, command)
    write_json(folder / "outcome.json", outcome.to_json())
    write_document(document, folder / _NAME, source=Source(command))
    recipe = outcome.sweep.recipe_of_all()
    subtitle = f"{recipe.dataset}, {recipe.model}, {recipe.epochs} epochs; chosen on validation"
    title = "Search of the optimizers' settings"
    return write_document_page([document], folder, title=title, subtitle=subtitle)


def make_document(outcome: Outcome, command: str) -> Document:
    """What was searched, what was found, and the figures."""
    document = Document(_NAME, "Winners and sensitivity")
    document.add(text(*_facts(outcome, command)), winners_table(outcome))
    document.add(*(text(no_winner_text(outcome, label)) for label in outcome.without_winner))
    document.add(*all_figures(outcome), _trials(outcome))
    document.add(
        *(Attachment(f"../winners/{w.label}.toml", f"Recipe of {w.label}") for w in outcome.winners)
    )
    return document


def _facts(outcome: Outcome, command: str) -> list[str]:
    how, recipe = outcome.sweep.how, outcome.sweep.recipe_of_all()
    kind = outcome.kind
    runs = "one run" if how.seeds == 1 else f"{how.seeds} runs"
    return [
        f"**{how.trials} trials for each optimizer**: {_SAMPLERS[how.sampler]}; "
        f"{_PRUNERS[how.pruner]}; search seed {how.seed}, {runs} a trial.",
        f"Chosen by the **validation {kind.chosen_by}** after {how.epochs} epochs, on "
        f"{held_out(recipe)}. The test set was not used.",
        f"Good region: the learning rates around the best that lose at most {kind.lost} of "
        f"{kind.columns[0]}, in decades, interpolated in the logarithm of the rate."
        f"{pruned_text(outcome)}",
        f"Command: `{command}`",
    ]


def held_out(recipe: Recipe) -> str:
    """What the trials were scored on."""
    if not recipe.val_size:
        return "the validation data that were given"
    return f"{recipe.val_size} examples held out of the training set"


def no_winner_text(outcome: Outcome, label: str) -> str:
    """Why nothing was chosen for a competitor."""
    trials = outcome.of(label)
    counts = Counter(trial.state for trial in trials)
    return (
        f"{label}: no winner, because none of its {len(trials)} trials was trained to the end "
        f"without diverging ({counts['diverged']} diverged, {counts['pruned']} pruned)."
    )


def settings_text(winner: Winner) -> str:
    """The chosen settings, with as many digits as matter, and what is to be known of the search."""
    short = {
        name: f"{value:.4g}" if isinstance(value, float) else setting_text(value)
        for name, value in winner.trial.settings.items()
    }
    chosen = ", ".join(f"{name}={value}" for name, value in short.items())
    return f"{chosen} ({winner.note})" if winner.note else chosen


def winners_table(outcome: Outcome) -> Table:
    """The best trial of each optimizer."""
    columns = ("optimizer", *outcome.kind.columns, "chosen", "trials")
    more = ("pruned", "diverged", "epochs trained", "good region [decades]")
    rows = [
        (
            w.label,
            w.trial.value if outcome.kind.own else round(w.trial.top1, 3),
            w.trial.nll,
            settings_text(w),
            w.trials,
            w.pruned,
            w.diverged,
            w.epochs,
            None if w.region is None else w.region.shown,
        )
        for w in outcome.winners
    ]
    return Table("winners", "The best trial of each optimizer", (*columns, *more), rows)


def _trials(outcome: Outcome) -> Table:
    names = searched_names(outcome.sweep.competitors)
    columns = ("label", "trial", "state", "epochs", *outcome.kind.keys, *names, "folder")
    rows = [
        (
            t.label,
            t.number,
            t.state,
            t.epochs,
            t.value if outcome.kind.own else t.top1,
            t.nll,
            *(None if name not in t.settings else setting_text(t.settings[name]) for name in names),
            t.folder,
        )
        for t in outcome.trials
    ]
    return Table("trials", "all trials", columns, rows, shown=False)


def write_winners(outcome: Outcome, command: str) -> list[Path]:
    """Write ``winners/LABEL.toml`` for each winner: recipes for `compare --recipes` and `train`."""
    written = []
    for winner in outcome.winners:
        path = outcome.sweep.folder / "winners" / f"{winner.label}.toml"
        write_text(path, winner_toml(outcome, winner, command))
        written.append(path)
    return written


def winner_toml(outcome: Outcome, winner: Winner, command: str) -> str:
    """One winner as a recipe."""
    sweep, trial, kind = outcome.sweep, winner.trial, outcome.kind
    competitor = next(c for c in sweep.competitors if c.label == winner.label)
    recipe = sweep.recipe(competitor, winner.settings)
    # TOML allows no control characters in a comment
    comment = "".join(c if c.isprintable() else "?" for c in " ".join(command.split()))
    lines = [
        f"# Best of {winner.trials} trials of {winner.label}: number {trial.number}.",
        f"# Validation {kind.columns[0].split(' ')[1]} {kind.merit_text(trial.top1)}, "
        f"{kind.columns[1].split(' ')[1]} {fixed(trial.nll, 4)}, on "
        f"{held_out(recipe)}; the test set was not used.",
        f"# {comment}",
    ]
    if winner.note:  # for the verdicts of `compare --recipes`
        lines += toml_lines({SEARCH_NOTE: winner.note})
    values = recipe.model_dump()
    lines += toml_lines({k: v for k, v in values.items() if k not in _LEFT_OUT and v != {}})
    lines += ["", "[settings]", *toml_lines(winner.settings)]
    return "\n".join(lines) + "\n"
