"""Recipes: what is allowed, what is said about the rest, what is filled in."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from lpsgd.lab import models
from lpsgd.lab.cli import app as cli
from lpsgd.lab.cli.options import read_values
from lpsgd.lab.errors import UserError
from lpsgd.lab.plan import resolve
from lpsgd.lab.recipe import Recipe, make_recipe, read_recipe_file, to_json
from lpsgd.lab.training.lr import lr_factor


def test_unknown_keys_are_errors_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="unknown key 'epoch' .did you mean 'epochs'"):
        make_recipe({"epoch": 3})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs=0: .*greater than 0"),
        ({"precision": "fp8"}, "precision='fp8': .*'fp32', 'bf16' or 'fp16'"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0: .*less than 1"),
        ({"accumulate": 64, "batch_size": 32}, "accumulate=64 is more than batch_size=32"),
        ({"warmup_epochs": 30.0, "epochs": 2}, "warmup_epochs=30 is more than epochs=2"),
        ({"closure": True, "precision": "fp16"}, "do not work with precision=fp16"),
        ({"settings": {"lr": {}}}, "lr={} is not a number"),
        ({"seed": -1}, "seed=-1"),
        ({"epochs": True}, "epochs=True: .*valid integer"),
        ({"width": "8"}, "width='8': .*valid integer"),
        ({"compile": "yes"}, "compile='yes': .*valid boolean"),
        ({"warmup_epochs": True}, "warmup_epochs=True: .*valid number"),
        ({"warmup_epochs": math.inf}, "warmup_epochs=inf: .*finite number"),
        ({"clip_norm": math.inf}, "clip_norm=inf: .*finite number"),
    ],
)
def test_wrong_values_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_recipe(values)


def test_a_whole_number_is_a_number() -> None:
    assert make_recipe({"warmup_epochs": 2, "clip_norm": 1}).clip_norm == 1.0


def test_a_recipe_survives_strict_json() -> None:
    recipe = make_recipe({"settings": {"p": math.inf, "lr": 1e-3, "betas": [0.9, 0.99]}})
    text = json.dumps(to_json(recipe), allow_nan=False)
    assert make_recipe(json.loads(text)) == recipe


def test_the_digest_tells_recipes_apart() -> None:
    digests = {
        make_recipe({"seed": 0}).digest(),
        make_recipe({"seed": 1}).digest(),
        make_recipe({"lr_end": 0.1}).digest(),
    }
    assert len(digests) == 3
    assert make_recipe({"seed": 0}).digest(without=("seed",)) == make_recipe({"seed": 1}).digest(
        without=("seed",)
    )


def test_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('model = "mlp"\nepochs = 3\noptimizer = "sgd"\n[settings]\nlr = 0.2\n')
    recipe = resolve(read_recipe_file(path))
    assert (recipe.epochs, recipe.optimizer, recipe.settings["lr"]) == (3, "sgd", 0.2)
    assert recipe.settings["momentum"] == 0.9, "what was left out is filled in"


@pytest.mark.parametrize(
    "text", ["epochs = ", b"\xff\xfe", "epochs = " + "1" * 5000, "data = " + "[" * 5000]
)
def test_a_file_that_is_not_toml(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UserError, match="not a TOML file"):
        read_recipe_file(path)
    with pytest.raises(UserError, match="No such file"):
        read_recipe_file(tmp_path / "absent.toml")


def test_import_paths_in_files_need_consent(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for name in ("optimizer", "model", "dataset"):
        path.write_text(f'{name} = "package.module:Name"\n')
        with pytest.raises(UserError, match=f"{name}='package.module:Name' .* --allow-import"):
            read_values(path, {}, allow_import=False)
        assert read_values(path, {}, allow_import=True) == {name: "package.module:Name"}
    # on the command line the user typed what is used instead
    read_values(path, {"dataset": "digits"}, allow_import=False)
    path.write_text('optimizer = "package.module:Name"\n')
    read_values(path, {}, allow_import=False, optimizer="torch.optim:SGD")


def test_the_optimizer_of_the_command_line_replaces_that_of_the_file() -> None:
    recipe = resolve({"optimizer": "sgd", "settings": {"lr": 0.2}}, "adamw")
    assert recipe.optimizer == "adamw"
    assert recipe.settings["lr"] != 0.2


def test_closure_and_graph_follow_the_registry() -> None:
    """The flags speak of imported classes: a registered optimizer's needs are known."""
    recipe = resolve({"closure": True, "create_graph": True}, "sgd")
    assert (recipe.closure, recipe.create_graph) == (False, False)
    imported = resolve({"closure": True}, "torch.optim:LBFGS")
    assert (imported.closure, imported.create_graph) == (True, False)


def test_unknown_settings_are_errors_before_anything_runs() -> None:
    with pytest.raises(UserError, match="unknown setting 'momentun' .did you mean 'momentum'"):
        resolve({}, "sgd:momentun=0.9")


def test_every_field_says_what_it_is() -> None:
    assert all(field.description for field in Recipe.model_fields.values())


def test_help_says_what_may_be_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # wide enough for one line of each option
    lines = {}
    for command in ("train", "sweep"):
        assert cli.main([command, "--help"]) == 0
        out = capsys.readouterr().out
        lines[command] = {
            option: next(line for line in out.splitlines() if re.match(rf"│[ *]+{option} ", line))
            for option in ("--precision", "--lr-schedule", "--decay", "--val-size", "--model")
        }
    for line in lines.values():
        assert "fp32|bf16|fp16" in line["--precision"]
        assert "cosine|constant" in line["--lr-schedule"]
        assert "all|matrices" in line["--decay"]
        assert all(f" {name}" in line["--model"] for name in models.names())
    assert "[default:" not in lines["train"]["--val-size"]  # it is 0
    assert "[default: a fifth of it]" in lines["sweep"]["--val-size"]  # what sweep takes instead


def test_warm_up_then_cosine() -> None:
    factor = [
        lr_factor(step, total_steps=20, warmup_steps=4, schedule="cosine", end=0.1)
        for step in range(21)
    ]
    assert factor[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert factor[4] == 1.0
    assert factor[12] == pytest.approx(0.55)
    assert factor[20] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(factor[4:]))
    for step in range(4, 21):
        expected = 0.1 + 0.9 * math.cos(math.pi * (step - 4) / 32) ** 2  # (1 + cos 2x)/2 = cos^2 x
        assert factor[step] == pytest.approx(expected)


def test_constant_after_the_warm_up() -> None:
    assert lr_factor(0, total_steps=9, warmup_steps=0, schedule="constant") == 1.0
    assert lr_factor(8, total_steps=9, warmup_steps=2, schedule="constant") == 1.0
