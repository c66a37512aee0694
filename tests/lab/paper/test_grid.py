"""The paper's grids: their sizes, and that the file written for sweeps is the same grid."""

from __future__ import annotations

import tomllib
from itertools import product
from pathlib import Path

from lpsgd.lab.paper import grid
from lpsgd.lab.paper.tables import published as tables
from lpsgd.peers import factory, registry


def test_sizes_are_those_that_the_paper_implies() -> None:
    full = grid.load_space(keep_zero_lr=True)
    sizes = {name: grid.trials(choices) for name, choices in full.items()}
    assert sizes == {"sgd": 112, "lpsgdm": 112 * 5, "adamw": 36, "lion": 36}
    without = {name: grid.trials(choices) for name, choices in grid.load_space().items()}
    assert without == {"sgd": 96, "lpsgdm": 96 * 5, "adamw": 36, "lion": 36}
    for choices in full.values():
        assert len(list(product(*choices.values()))) == grid.trials(choices)


def test_every_combination_is_a_setting_of_its_optimizer() -> None:
    for name, choices in grid.load_space().items():
        first = {name: values[0] for name, values in choices.items()}
        factory.try_out(name, first)
        assert set(choices) <= set(registry.get(name).settings)


def test_only_lions_beta2_lies_outside() -> None:
    full = grid.load_space(keep_zero_lr=True)
    outside = {
        (row.dataset, row.optimizer): set(grid.outside(row, full))
        for row in tables.setting_rows()
        if grid.outside(row, full)
    }
    assert outside == {("cifar10", "Lion"): {"betas"}, ("cifar100", "Lion"): {"betas"}}


def test_the_written_file_is_the_same_space(tmp_path: Path) -> None:
    document = grid.reproduce(tmp_path)
    assert tomllib.loads((tmp_path / "grid.toml").read_text()) == grid.load_space()
    assert "unequal" in document.blocks[0].items[0]
    grid.reproduce(tmp_path, keep_zero_lr=True)
    assert tomllib.loads((tmp_path / "grid.toml").read_text())["sgd"]["lr"][0] == 0


def test_no_number_of_p_max_is_said_to_be_printed(tmp_path: Path) -> None:
    """The paper tunes p_max over values that it does not give."""
    document = grid.reproduce(tmp_path)
    (budgets,) = [b for b in document.blocks if getattr(b, "name", "") == "grid-budgets"]
    printed = {row[0]: row[1] for row in budgets.rows}
    assert printed == {"sgd": "112", "lpsgdm": "112 for each p_max", "adamw": "36", "lion": "36"}
