"""Search the default settings of the optimizers: the same number of trials for each, on validation.

python scripts/find_defaults.py [--settings digits/mlp,...] [--optimizers sgd,...] [--jobs 2]

A sweep for each: every combination of some learning rates and decays, the winner by the lowest
validation NLL at the end. The result goes to src/lpsgd/lab/defaults.json with the command; entries
that were not searched stay as they are. Runs are kept: a second call trains only what is new.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import LabError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.search.definition import Sweep
from lpsgd.lab.search.method import Search, count_trials
from lpsgd.lab.search.outcome import conclude
from lpsgd.lab.search.run import run_search
from lpsgd.lab.search.space_file import parse_space
from lpsgd.lab.search.storage import StorageUrl
from lpsgd.lab.store.disk.files import write_text
from lpsgd.lab.training.options import RunOptions

DEFAULTS = Path(__file__).parents[1] / "src/lpsgd/lab/defaults.json"

# What is trained in one trial. Small, because the shape of the answer is what matters.
_CIFAR = {
    "epochs": 5,
    "train_size": 4000,
    "val_size": 1000,
    "test_size": 100,
    "width": 8,
    "seeds": 1,
    "decays": 1,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "digits/mlp": {"epochs": 15, "val_size": 287, "seeds": 2, "decays": 2},
    "digits/resnet18": {"epochs": 6, "val_size": 287, "width": 8, "seeds": 1, "decays": 1},
    "cifar10/resnet18": _CIFAR,
    "cifar10/vgg11": _CIFAR,
    "text/gpt": {
        "epochs": 4,
        "val_size": 64,
        "train_size": 2048,
        "test_size": 16,
        "batch_size": 32,
        "width": 32,
        "seeds": 1,
        "decays": 1,
    },
}

# The same learning rates for every optimizer and setting, half a decade apart, so wide that nobody
# needs a grid of its own. Decay coupled to the gradient (or to SGD's large rates) wants to be
# smaller than decay that is not.
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
SMALL_DECAYS = (0.0, 5e-4)
DECAYS = (0.0, 0.05)
WITH_SMALL_DECAYS = ("sgd", "sgdw", "adam", "adagrad", "rmsprop")


def plan(setting: str, optimizer: str, out: Path) -> Sweep:
    """The search of one optimizer: every point of a grid that has as many points for each.

    Trials train with seed 0 and on.
    """
    dataset, _, model = setting.partition("/")
    setup = SETTINGS[setting]
    values = {name: value for name, value in setup.items() if name not in ("seeds", "decays")}
    decays = SMALL_DECAYS if optimizer in WITH_SMALL_DECAYS else DECAYS
    grid = {"lr": list(RATES), "weight_decay": list(decays[-setup["decays"] :])}
    competitors = parse_space({optimizer: grid})
    trials = count_trials(competitors, "grid", None)
    how = Search("grid", "none", "nll", trials, 1, 0, setup["epochs"], setup["seeds"])
    values |= {"dataset": dataset, "model": model, "seed": 0}
    return Sweep(values, competitors, how, out / f"{dataset}-{model}-{optimizer}")


def find(setting: str, optimizer: str, out: Path, jobs: int) -> dict[str, Any]:
    """Search, and return what defaults.json says of one optimizer."""
    sweep = plan(setting, optimizer, out)
    command = f"python scripts/find_defaults.py --settings {setting} --optimizers {optimizer}"
    url = StorageUrl.of_file(sweep.folder / "trials.db")
    ended = run_search(sweep, url, ExecutorChoice(jobs=jobs), RunOptions(), command=command)
    (winner,) = conclude(sweep, ended).winners
    found = {name: winner.settings[name] for name in ("lr", "weight_decay")}
    print(f"{setting} {optimizer}: {found}, validation NLL {winner.trial.nll:.4f}")
    dataset, _, model = setting.partition("/")
    return {
        "dataset": dataset,
        "model": model,
        "optimizer": optimizer,
        "settings": found,
        "val_nll": winner.trial.nll,
        "trials": winner.trials,
        "lr_at_the_edge_of_the_grid": winner.edge is not None,
        "setup": SETTINGS[setting],
        "command": command,
    }


def merge(new: list[dict[str, Any]]) -> None:
    """Put the new entries into defaults.json."""

    def key(entry: dict[str, Any]) -> tuple[str, str, str]:
        return entry["dataset"], entry["model"], entry["optimizer"]

    known = {key(entry): entry for entry in json.loads(DEFAULTS.read_text())["entries"]}
    known |= {key(entry): entry for entry in new}
    write_text(DEFAULTS, as_table([known[k] for k in sorted(known)]))


def as_table(entries: list[dict[str, Any]]) -> str:
    """The text of defaults.json: one line for each entry."""
    lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
    return f'{{"version": 1, "entries": [\n{lines}\n]}}\n'


def main() -> None:
    """Search, then write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--optimizers", default="sgd,adamw,lion,lpsgdm")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    asked = parser.parse_args()
    pairs = itertools.product(asked.settings.split(","), asked.optimizers.split(","))
    try:
        found = [find(*pair, asked.out, asked.jobs) for pair in pairs]
    except LabError as error:
        sys.exit(str(error))
    merge(found)


if __name__ == "__main__":
    main()
