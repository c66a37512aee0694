"""The searched defaults: fair, usable, and found for what was not searched."""

from __future__ import annotations

import json
import runpy
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

import pytest

from lpsgd.lab import defaults
from lpsgd.lab.cli import app as cli
from lpsgd.lab.plan import resolve
from lpsgd.peers import registry

ENTRIES = json.loads(files("lpsgd.lab").joinpath("defaults.json").read_text())["entries"]


def test_every_optimizer_of_a_setting_had_as_many_trials() -> None:
    trials = defaultdict(set)
    for entry in ENTRIES:
        trials[entry["dataset"], entry["model"]].add(entry["trials"])
        assert entry["command"].startswith("python scripts/find_defaults.py")
    assert ("digits", "mlp") in trials
    assert all(len(counts) == 1 for counts in trials.values())


@pytest.mark.parametrize(
    "entry", ENTRIES, ids=lambda e: f"{e['dataset']}-{e['model']}-{e['optimizer']}"
)
def test_recipes_are_filled_in_with_them(entry: dict[str, str]) -> None:
    registry.check_settings(entry["optimizer"], entry["settings"])  # type: ignore[arg-type]
    recipe = resolve({"dataset": entry["dataset"], "model": entry["model"]}, entry["optimizer"])
    assert recipe.settings | entry["settings"] == recipe.settings  # type: ignore[operator]


def test_the_nearest_searched_setting_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(dataset: str, model: str, lr: float) -> dict[str, object]:
        return {"dataset": dataset, "model": model, "optimizer": "sgd", "settings": {"lr": lr}}

    searched = [entry("digits", "mlp", 1.0), entry("digits", "vgg11", 2.0)]
    searched += [entry("cifar10", "mlp", 4.0), entry("cifar10", "vgg11", 3.0)]
    monkeypatch.setattr(defaults, "_entries", lambda: searched)
    find = defaults.default_settings
    assert find("digits", "mlp", "sgd") == {"lr": 1.0}
    assert find("cifar10", "vgg11", "sgd") == {"lr": 3.0}
    assert find("cifar10", "resnet18", "sgd") == {"lr": 3.0}  # the other convolutions
    assert find("cifar100", "vgg11", "sgd") == {"lr": 3.0}  # images of the same kind
    assert find("cifar100", "gpt", "sgd") == {"lr": 4.0}  # anything before nothing
    assert find("imagefolder", "resnet50", "sgd") == {}
    assert find("text", "gpt", "sgd") == {}
    assert find("digits", "mlp", "adamw") == {}
    # what the user gives wins over what was searched, and that over the registry
    recipe = resolve({"dataset": "digits", "model": "mlp"}, "sgd:momentum=0.5")
    assert (recipe.settings["lr"], recipe.settings["momentum"]) == (1.0, 0.5)


def test_the_command_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["optimizers", "sgd", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    for entry in ENTRIES:
        if entry["optimizer"] == "sgd":
            assert row["searched"][f"{entry['dataset']}/{entry['model']}"] == entry["settings"]
    assert cli.main(["optimizers", "sgd"]) == 0
    lr = row["searched"]["digits/mlp"]["lr"]
    assert f"digits/mlp: lr={lr}, weight_decay=" in capsys.readouterr().out


def test_defaults_for_another_length_of_training_are_doubted() -> None:
    def doubt(optimizer: str, **values: object) -> str | None:
        return defaults.doubts(
            [resolve({"dataset": "cifar10", "model": "resnet18", **values}, optimizer)]
        )

    assert doubt("sgd", epochs=5) is None
    assert "sgd (searched with 5 epochs)" in str(doubt("sgd", epochs=200))
    assert doubt("sgd:lr=0.05", epochs=200) is None
    borrowed = str(doubt("sgd", model="resnet50", epochs=5))
    assert "sgd (searched on cifar10/resnet18, 5 epochs)" in borrowed
    assert "adamw (never searched here)" in str(doubt("adamw", dataset="imagefolder"))
    assert doubt("adamw:lr=0.5", dataset="imagefolder") is None
    assert doubt("torch.optim:SGD", dataset="imagefolder") is None


def test_optimizers_with_the_same_doubt_are_named_together() -> None:
    values = {"dataset": "cifar100", "model": "resnet18", "epochs": 5}
    recipes = [resolve(values, name) for name in ("sgd", "sgd", "adamw")]
    assert "sgd, adamw (searched on cifar10/resnet18, 5 epochs):" in str(defaults.doubts(recipes))


def test_bench_lists_and_runs_the_benchmarks(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench"]) == 0
    assert "training" in capsys.readouterr().out
    assert cli.main(["bench", "trainig"]) == 2
    assert "did you mean 'training'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["bench", "training", "no-such-part"])
    assert "unknown part 'no-such-part'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", "step", "--device", "cuda:99"])
    assert "--device cuda:99 cannot be used here" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", "limits", "--no-such-option"])  # it imports another benchmark
    assert "unrecognized arguments: --no-such-option" in capsys.readouterr().err


def test_the_script_writes_the_file_in_its_form() -> None:
    root = Path(__file__).parents[2]
    script = runpy.run_path(str(root / "scripts/find_defaults.py"), run_name="script")
    written = (root / "src/lpsgd/lab/defaults.json").read_text(encoding="utf-8")
    assert script["as_table"](ENTRIES) == written
