"""The paper's search grids: one definition (``grid.toml``) for `reproduce grid` and for sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.report.document import Attachment, Cell, Document, Table, text
from lpsgd.lab.store.disk.files import write_text
from lpsgd.lab.store.disk.tomlio import package_toml, toml_lines

Space: TypeAlias = "dict[str, dict[str, list[Any]]]"

# What Tables 4 to 6 fix and the search does not vary.
_NOT_SEARCHED = {"eps", "p_schedule"}


def load_space(*, keep_zero_lr: bool = False) -> Space:
    """The choices of each setting of each optimizer; without the paper's lr of 0 unless kept."""
    space: Space = package_toml("lpsgd.lab.paper", "grid.toml")
    if not keep_zero_lr:
        for choices in space.values():
            choices["lr"] = [lr for lr in choices["lr"] if lr > 0]
    return space


def trials(choices: Mapping[str, list[Any]]) -> int:
    """How many combinations a grid has.

    >>> trials({"lr": [0.1, 0.01], "momentum": [0.0, 0.9]})
    4
    """
    return math.prod(len(values) for values in choices.values())


def outside(row: tables.Setting, space: Space) -> dict[str, Any]:
    """The settings of a row of Tables 4 to 6 that its grid does not contain."""
    values = tables.recipe_values(row)
    choices = space[values["optimizer"]]
    return {
        name: value
        for name, value in values["settings"].items()
        if name not in _NOT_SEARCHED and value not in choices[name]
    }


def grid_to_toml(space: Space) -> str:
    """The space as a file that a sweep takes."""
    lines = ["# The search grids of the paper, written by `lpsgd reproduce grid`."]
    for optimizer, choices in space.items():
        lines += ["", f"[{optimizer}]", *toml_lines(choices)]
    return "\n".join(lines) + "\n"


def reproduce(folder: Path, *, keep_zero_lr: bool = False) -> Document:
    """The grids with their sizes, and where the tables' settings fall outside them."""
    full, space = load_space(keep_zero_lr=True), load_space(keep_zero_lr=keep_zero_lr)
    write_text(folder / "grid.toml", grid_to_toml(space))
    rows = [
        (name, _printed(full[name]), trials(choices), ", ".join(_sizes(choices)))
        for name, choices in space.items()
    ]
    return Document("grid", "The paper's search grids").add(
        text(
            "Trials that the paper's grids imply for each network and data set. The budgets are "
            "unequal: LPSGDM has all of SGD's combinations times the number of p_max values, which "
            "the paper does not give (five here, our choice), AdamW and Lion a third of SGD's. "
            "A learning rate of 0 is "
            + ("kept." if keep_zero_lr else "left out: it learns nothing (`grid-lr0=keep`).")
        ),
        Table(
            "grid-budgets",
            "Trials in each grid",
            ("optimizer", "trials as printed", "trials here", "choices"),
            rows,
        ),
        Table(
            "grid-outside",
            "Settings of Tables 4 to 6 that lie outside the grid that they were chosen from",
            ("data set", "model", "optimizer", "setting", "in the table", "in the grid"),
            list(_outside_rows(full)),
        ),
        Attachment("grid.toml", "The grids as a search space"),
    )


def _printed(choices: Mapping[str, list[Any]]) -> str:
    """The trials of what the paper prints, which gives no values of p_max."""
    known = trials({name: values for name, values in choices.items() if name != "p"})
    return f"{known} for each p_max" if "p" in choices else str(known)


def _sizes(choices: Mapping[str, list[Any]]) -> list[str]:
    return [f"{name} {len(values)}" for name, values in choices.items() if len(values) > 1]


def _outside_rows(space: Space) -> Iterator[tuple[Cell, ...]]:
    for row in tables.setting_rows():
        for name, value in outside(row, space).items():
            choices = space[tables.OPTIMIZERS[row.optimizer]][name]
            found = (tables.DATASETS[row.dataset], row.model, row.optimizer, name)
            yield (*found, str(value), str(choices))
