"""The paper's tables as data: parsing, joins, and that no value is left unused."""

from __future__ import annotations

import csv
from importlib import resources

import pytest

from lpsgd.lab.errors import LabError
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.recipe import make_recipe
from lpsgd.peers import factory


def raw(name: str) -> list[dict[str, str]]:
    with (resources.files("lpsgd.lab.paper") / name).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_every_row_is_parsed_to_the_digit() -> None:
    rows = raw("results.csv")
    assert len(rows) == len(tables.results()) == 7 * 4 * 2 * 3
    for row, found in zip(rows, tables.results(), strict=True):
        assert (row["dataset"], row["model"], row["optimizer"], row["metric"]) == (
            found.dataset,
            found.model,
            found.optimizer,
            found.metric,
        )
        assert int(row["epoch"]) == found.epoch
        assert (float(row["mean"]), float(row["std"])) == (found.mean, found.std)
    assert len(raw("hyperparameters.csv")) == len(tables.settings()) == 28


def test_known_places() -> None:
    assert tables.result("cifar100", "ResNet-18", "LPSGDM", "train_nll", 200).mean == 1.2290
    assert tables.result("cifar10", "VGG-11", "AdamW", "test_top1", 50).std == 3.87
    lpsgdm = tables.setting("imagenet1k", "ResNet-50", "LPSGDM")
    assert (lpsgdm.p_max, lpsgdm.lr, lpsgdm.weight_decay) == (9, 0.002, 0.005)
    assert tables.setting("imagenet1k", "ResNet-50", "SGD w/ Momentum").eps is None
    with pytest.raises(KeyError):
        tables.result("imagenet1k", "VGG-11", "LPSGDM", "test_top1", 60)


def test_results_and_settings_join() -> None:
    by_result = {(r.dataset, r.model, r.optimizer) for r in tables.results()}
    by_setting = {(s.dataset, s.model, s.optimizer) for s in tables.settings()}
    assert by_result == by_setting
    assert tables.checkpoints("cifar10") == tables.checkpoints("cifar100") == (50, 100, 200)
    assert tables.checkpoints("imagenet1k") == (20, 40, 60)
    assert tables.models("cifar100") == ("VGG-11", "ResNet-18", "ResNet-50")
    assert tables.models("imagenet1k") == ("ResNet-50",)


def other(column: str, value: str) -> str:
    words = {
        "dataset": "cifar100" if value != "cifar100" else "cifar10",
        "model": "VGG-11" if value != "VGG-11" else "ResNet-18",
        "optimizer": "Lion" if value != "Lion" else "SGD w/ Momentum",
        "schedule": "step decay",
    }
    return words.get(column) or str(int(value) * 2 if value.isdigit() else float(value) * 2)


@pytest.mark.parametrize(
    "row", raw("hyperparameters.csv"), ids=lambda r: "-".join(list(r.values())[:3])
)
def test_every_setting_changes_the_run_or_is_named_inapplicable(row: dict[str, str]) -> None:
    inapplicable = {(item.optimizer, item.column, item.value) for item in tables.INAPPLICABLE}
    kept = tables.recipe_values(tables.parse_setting(row))
    for column, value in row.items():
        if not value or column == "dataset":  # a dash; the data set chooses the table's place
            continue
        changed = tables.parse_setting({**row, column: other(column, value)})
        if column == "schedule":
            with pytest.raises(LabError, match="step decay"):
                tables.recipe_values(changed)
        elif column == "optimizer":
            assert tables.OPTIMIZERS[changed.optimizer] != kept["optimizer"]
        else:
            used = tables.recipe_values(changed) != kept
            assert used != ((row["optimizer"], column, value) in inapplicable), column


def test_every_inapplicable_value_is_in_the_tables() -> None:
    rows = raw("hyperparameters.csv")
    for item in tables.INAPPLICABLE:
        assert any(
            row["optimizer"] == item.optimizer and row[item.column] == item.value for row in rows
        )
        assert item.reason


@pytest.mark.parametrize("row", tables.settings(), ids=str)
def test_every_row_makes_a_recipe_that_its_optimizer_takes(row: tables.Setting) -> None:
    values = tables.recipe_values(row)
    recipe = make_recipe(values)
    factory.try_out(recipe.optimizer, recipe.settings)
    assert recipe.val_size == 0
    assert recipe.settings["lr"] == row.lr
    assert recipe.settings["weight_decay"] == row.weight_decay
