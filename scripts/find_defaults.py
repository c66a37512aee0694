"""Search the default settings of the optimizers: the same number of trials for each, on validation.

python scripts/find_defaults.py [--settings digits/mlp,...] [--optimizers sgd,...] [--jobs 2]

Every trial is an ordinary run with a part of the training set held out; the test set decides
nothing. The winner has the lowest mean validation NLL at the end. The result goes to
src/lpsgd/lab/defaults.json with this command; entries that were not searched stay as they are.
Runs are kept, so that a second call with more optimizers trains only what is new.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import threading
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.executor import LocalExecutor
from lpsgd.lab.files import write_json
from lpsgd.lab.live import RunsDisplay
from lpsgd.lab.plan import Task, resolve
from lpsgd.lab.records import load_run
from lpsgd.lab.runs import read_result
from lpsgd.lab.training import RunOptions

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
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
SMALL_DECAYS = (0.0, 5e-4)
DECAYS = (0.0, 0.05)
WITH_SMALL_DECAYS = ("sgd", "sgdw", "adam", "adagrad", "rmsprop")


def grid(optimizer: str, setting: str) -> list[dict[str, float]]:
    """The trials of one optimizer; as many for each."""
    decays = SMALL_DECAYS if optimizer in WITH_SMALL_DECAYS else DECAYS
    chosen = decays[-SETTINGS[setting]["decays"] :]
    return [{"lr": lr, "weight_decay": decay} for lr, decay in itertools.product(RATES, chosen)]


def plan(setting: str, optimizer: str, out: Path) -> list[list[Task]]:
    """The runs of each trial."""
    dataset, _, model = setting.partition("/")
    ours = ("seeds", "decays")
    values = {k: v for k, v in SETTINGS[setting].items() if k not in ours}
    trials = []
    for trial in grid(optimizer, setting):
        text = ",".join(f"{key}={value}" for key, value in trial.items())
        recipe = resolve({"dataset": dataset, "model": model, **values}, f"{optimizer}:{text}")
        runs = [recipe.with_changes(seed=seed) for seed in range(SETTINGS[setting]["seeds"])]
        trials.append([Task(f"{setting} {optimizer}:{text}", r, out / r.digest()) for r in runs])
    return trials


def score(trial: list[Task]) -> float:
    """The mean validation NLL at the end; infinite if a run did not get there."""
    ends = []
    for task in trial:
        run = load_run(task.folder, task.folder)
        value = run.last("val_nll") if run.state == "complete" else None
        ends.append(math.inf if value is None or math.isnan(value) else value)
    return statistics.mean(ends)


def choose(setting: str, optimizer: str, trials: list[list[Task]]) -> dict[str, Any]:
    """The entry of defaults.json for one optimizer."""
    scores = [score(trial) for trial in trials]
    best = min(range(len(trials)), key=scores.__getitem__)
    dataset, _, model = setting.partition("/")
    points = grid(optimizer, setting)
    found = points[best]
    print(f"{setting} {optimizer}: {found}, validation NLL {scores[best]:.4f}")
    return {
        "dataset": dataset,
        "model": model,
        "optimizer": optimizer,
        "settings": found,
        "val_nll": scores[best],
        "trials": len(trials),
        "lr_at_the_edge_of_the_grid": found["lr"] in (RATES[0], RATES[-1]),
        "setup": SETTINGS[setting],
        "command": f"python scripts/find_defaults.py --settings {setting} --optimizers {optimizer}",
    }


def merge(new: list[dict[str, Any]]) -> None:
    """Put the new entries into defaults.json."""

    def key(entry: dict[str, Any]) -> tuple[str, str, str]:
        return entry["dataset"], entry["model"], entry["optimizer"]

    known = {key(entry): entry for entry in json.loads(DEFAULTS.read_text())["entries"]}
    known |= {key(entry): entry for entry in new}
    write_json(DEFAULTS, {"version": 1, "entries": [known[k] for k in sorted(known)]})


def main() -> None:
    """Search, then write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--optimizers", default="sgd,adamw,lion,lpsgdm")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    asked = parser.parse_args()
    pairs = list(itertools.product(asked.settings.split(","), asked.optimizers.split(",")))
    try:
        plans = {pair: plan(*pair, asked.out) for pair in pairs}
    except UserError as error:
        sys.exit(str(error))
    tasks = [task for trials in plans.values() for trial in trials for task in trial]
    todo = [task for task in tasks if read_result(task.folder) is None]
    with RunsDisplay(todo) as display:
        LocalExecutor(asked.jobs, RunOptions()).run(todo, display.listen, threading.Event())
    merge([choose(*pair, trials) for pair, trials in plans.items()])


if __name__ == "__main__":
    main()
