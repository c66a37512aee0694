"""The search space: what a file may say, and what is said about one that may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lpsgd.lab.errors import UserError
from lpsgd.lab.paper import grid
from lpsgd.lab.search.space import Choices, Range
from lpsgd.lab.search.space_file import parse_space, read_space


def test_the_papers_grid_is_the_same_by_name_and_by_file(tmp_path: Path) -> None:
    grid.reproduce(tmp_path)
    by_name = [c.to_json() for c in read_space("paper")]
    by_file = [c.to_json() for c in read_space(str(tmp_path / "grid.toml"))]
    assert by_name == by_file
    sgd = read_space("paper", only=["sgd"])[0]
    assert sgd.grids() == grid.load_space()["sgd"]


def test_choices_ranges_and_fixed_values() -> None:
    tables = {
        "adamw": {
            "lr": {"low": 1e-4, "high": 1e-2, "log": True, "points": 3},
            "betas": [[0.9, 0.999], [0.9, 0.95]],
            "weight_decay": 0.1,
        },
        "rms": {"optimizer": "lpsgdm", "normalize": "rms", "p": {"low": 3, "high": 7, "step": 2}},
    }
    adamw, rms = parse_space(tables)
    assert adamw.grids()["lr"] == [1e-4, 1e-3, 1e-2]
    assert adamw.fixed == {"weight_decay": 0.1}
    chosen = {"lr": 1e-3, "betas": "[0.9, 0.95]"}  # a list has a name, which storages can keep
    assert adamw.settings(chosen) == {"weight_decay": 0.1, "lr": 1e-3, "betas": [0.9, 0.95]}
    assert (rms.label, rms.optimizer, rms.fixed) == ("rms", "lpsgdm", {"normalize": "rms"})
    assert rms.grids() == {"p": [3, 5, 7]}


@pytest.mark.parametrize(
    ("range_", "points"),
    [
        (Range(2, 10, step=4), [2, 6, 10]),
        (Range(2, 9, step=4), [2, 6]),
        (Range(3, 6), [3, 4, 5, 6]),
        (Range(0.0, 0.3, step=0.1), [0.0, 0.1, 0.2, 0.3]),
        (Range(1, 100, log=True, points=3), [1, 10, 100]),
        (Range(0.0, 1.0, points=2), [0.0, 1.0]),
        (Range(0.1, 1.0, log=True), None),
        (Range(1.00001, 1.00009, points=3), [1.00001, 1.00005, 1.00009]),  # not 1.0, outside
        (Range(0.9991, 0.9992, points=3), [0.9991, 0.99915, 0.9992]),  # not 0.9992 twice
        (Range(99990, 99998, points=3), [99990, 99994, 99998]),
        (Range(1.0, 1.0000000000000002, points=4), [1.0, 1.0000000000000002]),
    ],
)
def test_points_of_ranges(range_: Range, points: list[float] | None) -> None:
    assert range_.grid() == points
    low, high = range_.distribution().low, range_.distribution().high  # type: ignore[attr-defined]
    assert (low, high) == (range_.low, points[-1] if points and range_.step else range_.high)


def test_infinity_is_a_choice() -> None:
    choices = Choices((4, float("inf")))
    assert choices.grid() == [4, '"inf"']
    assert choices.value('"inf"') == float("inf")


LR = "lr = [0.1, 0.01]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no optimizer"),
        ("lr = [0.1]", r"lr = \[0.1\] is outside a table"),
        ("[sdg]\n" + LR, "unknown optimizer 'sdg' .did you mean 'sgd'"),
        ("[sgd]\nlearning = [1, 2]", "unknown setting 'learning'"),
        ("[sgd]\nmomentun = [0.1, 0.2]", "did you mean 'momentum'"),
        ("[sgd]\nlr = []", "lr: an empty list"),
        ("[sgd]\nlr = [0.0, 0.1]", "lr: 0.0 must be a finite number above 0"),
        ("[sgd]\nlr = 0\nmomentum = [0.0, 0.9]", "lr: 0 must be a finite number above 0"),
        ("[sgd]\nlr = [-0.1, 0.1]", "lr: -0.1 must be a finite number above 0"),
        ("[sgd]\nlr = ['a', 'b']", "lr='a' is not a number"),
        ("[sgd]\nlr = [nan, 0.1]", "nan is not a value"),
        ("[sgd]\nlr = [inf, 0.1]", "lr: inf must be a finite number above 0"),
        (
            "[sgd]\n" + LR + "\nmomentum = [0.9, 0.0]\nnesterov = [false, true]",
            "Nesterov momentum requires a momentum",
        ),
        ("[sgd]\nlr = [0.1, 0.1]", "listed twice"),
        ("[sgd]\nlr = [0.1, [[0.2]]]", r"\[\[0.2\]\] is not a number"),
        ("[sgd]\nlr = [1979-05-27, 0.1]", "is not a number"),
        ("[sgd]\nlr = 0.1", "nothing to search"),
        ("[sgd]", "nothing to search"),
        ("[sgd]\n" + LR + "\nmomentum = [0.9, 'x']", "is not a number"),
        ("[sgd]\n" + LR + "\nmomentum = [0.9, -1.0]", "momentum"),
        ("[lpsgdm]\n" + LR + "\np = [6, 1.5]", "p"),
        ("[sgd]\nlr = { low = 0.1 }", "a range needs high"),
        ("[sgd]\nlr = { low = 0.1, high = 0.1 }", "must be below high"),
        ("[sgd]\nlr = { low = 0.0, high = 0.1, log = true }", "above 0 for a logarithmic range"),
        ("[sgd]\nlr = { low = 0.0, high = 0.1 }", "lr: 0.0 must be a finite number above 0"),
        ("[sgd]\nlr = { low = 0.1, high = inf }", "high=inf is not a finite number"),
        ("[sgd]\nlr = { low = true, high = 2 }", "low=True is not a finite number"),
        ("[sgd]\nlr = { low = 0.1, high = 1.0, lgo = true }", "unknown key 'lgo'"),
        ("[sgd]\nlr = { low = 0.1, high = 1.0, log = 3 }", "log=3 is not true or false"),
        ("[sgd]\nlr = { low = 0.1, high = 1.0, log = true, step = 0.1 }", "has no step"),
        ("[sgd]\nlr = { low = 0.1, high = 1.0, step = 2.0 }", "at most high - low"),
        ("[sgd]\nlr = { low = 0.1, high = 1.0, step = 1e-9 }", "more than 10000 points"),
        ("[sgd]\nlr = { low = 1, high = 5, step = 0.5 }", "step=0.5 must be whole"),
        ("[sgd]\nlr = { low = 0.1, high = 1.0, points = 1 }", "points=1 must be a whole number"),
        ("[sgd]\nlr = { low = 0.1, high = 1.0, points = 3, step = 0.1 }", "not both"),
        ("[sgd]\noptimizer = 3\n" + LR, "optimizer=3 is not a name"),
        ('["os:system"]\n' + LR, "would import and run code"),
        ('["../.."]\noptimizer = "sgd"\n' + LR, "1 to 80 letters"),
        ('["a/b"]\noptimizer = "sgd"\n' + LR + '\n["a b"]\noptimizer = "sgd"\n' + LR, "two labels"),
        ("[sgd\n", "not a TOML file"),
        ("a = " + "[" * 5000, "not a TOML file"),
        ("[sgd]\nlr = [0.1, " + "1" * 5000 + "]", "not a TOML file"),
        ("[sgd]\nlr = { low = nan, high = 1.0 }", "low=nan is not a finite number"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_space(str(path))


def test_a_range_of_many_whole_numbers_is_no_grid() -> None:
    """Its points are not listed, which would take all memory."""
    (competitor,) = parse_space({"lpsgdm": {"lr": 0.1, "p": {"low": 2, "high": 2**50}}})
    assert competitor.searched["p"].distribution().high == 2**50  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="p is a range without points"):
        competitor.grids()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_space(str(tmp_path / "none.toml"))
    with pytest.raises(UserError, match="Is a directory"):
        read_space(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a TOML file"):
        read_space(str(tmp_path / "binary"))
    with pytest.raises(UserError, match="unknown label 'sdg'"):
        read_space("paper", only=["sdg"])


def test_labels_are_safe_file_names() -> None:
    (made,) = parse_space({"../x y": {"optimizer": "sgd", "lr": [0.1, 0.2]}})
    assert made.label == "x-y"
