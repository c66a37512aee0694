"""Search the default settings of the optimizers: the same number of trials for each, on validation.

python scripts/find_defaults.py [--settings digits/mlp,...] [--optimizers sgd,...] [--jobs 2]

One `lpsgd sweep` for each setting: every combination of six learning rates and some decays, the
winner by the lowest validation NLL at the end. The result goes to src/lpsgd/lab/defaults.json with
this command; entries that were not searched stay as they are. A second call goes on after a stop.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import LabError
from lpsgd.lab.files import write_json
from lpsgd.lab.sweep.outcome import Winner, conclude
from lpsgd.lab.sweep.search import Search, count_trials
from lpsgd.lab.sweep.space import parse_space
from lpsgd.lab.sweep.storage import StorageUrl
from lpsgd.lab.sweep.work import Sweep, carry_through
from lpsgd.lab.training import RunOptions

DEFAULTS = Path(__file__).parents[1] / "src/lpsgd/lab/defaults.json"
COMMAND = shlex.join(["python", "scripts/find_defaults.py", *sys.argv[1:]])

# What is trained in one trial. Small, because the shape of the answer is what matters.
SETTINGS: dict[str, dict[str, Any]] = {
    "digits/mlp": {"epochs": 15, "val_size": 287, "seeds": 2, "decays": 2, "shift": 0},
    "digits/resnet18": {
        "epochs": 6,
        "val_size": 287,
        "width": 8,
        "seeds": 1,
        "decays": 1,
        "shift": 1,
    },
    "text/gpt": {
        "epochs": 4,
        "val_size": 64,
        "train_size": 2048,
        "test_size": 16,
        "batch_size": 32,
        "width": 32,
        "seeds": 1,
        "decays": 1,
        "shift": 0,
    },
}

# Six learning rates, half a decade apart, and one or two decays. Networks with batch norm want
# larger rates in so short a training: there every optimizer's grid is shifted by half a decade.
CENTRES = {"sgd": 0.03, "adamw": 3e-3, "lion": 1e-3, "lpsgdm": 1e-2}
DECAYS = {"sgd": (0.0, 1e-3), "adamw": (0.01, 0.1), "lion": (0.01, 0.1), "lpsgdm": (0.0, 0.01)}


def space(optimizer: str, setting: str) -> dict[str, list[float]]:
    """The grid of one optimizer; as many points for each."""
    setup = SETTINGS[setting]
    centre, shift = CENTRES[optimizer], setup["shift"]
    rates = [float(f"{centre * 10 ** ((k + shift) / 2):.1g}") for k in range(-3, 3)]
    return {"lr": rates, "weight_decay": list(DECAYS[optimizer][-setup["decays"] :])}


def plan(setting: str, optimizers: list[str], out: Path) -> Sweep:
    """The search for one setting. Trials use seed 0 and on, as earlier entries did."""
    dataset, _, model = setting.partition("/")
    setup = SETTINGS[setting]
    ours = ("seeds", "decays", "shift")
    values = {"dataset": dataset, "model": model, "seed": 0}
    values |= {name: value for name, value in setup.items() if name not in ours}
    competitors = parse_space({name: space(name, setting) for name in optimizers})
    trials = count_trials(competitors, "grid", None)
    how = Search("grid", "none", "nll", trials, 1, 0, setup["epochs"], setup["seeds"])
    name = "-".join([dataset, model, *optimizers])  # other optimizers are another search
    return Sweep(values, competitors, how, out / name)


def entry(setting: str, winner: Winner) -> dict[str, Any]:
    """What defaults.json says of one optimizer."""
    dataset, _, model = setting.partition("/")
    found = {name: winner.settings[name] for name in ("lr", "weight_decay")}
    print(f"{setting} {winner.label}: {found}, validation NLL {winner.trial.nll:.4f}")
    return {
        "dataset": dataset,
        "model": model,
        "optimizer": winner.optimizer,
        "settings": found,
        "val_nll": winner.trial.nll,
        "trials": winner.trials,
        "lr_at_the_edge_of_the_grid": winner.edge is not None,
        "setup": SETTINGS[setting],
        "command": COMMAND,
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
    parser.add_argument("--optimizers", default=",".join(CENTRES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    asked = parser.parse_args()
    found = []
    try:
        for setting in asked.settings.split(","):
            sweep = plan(setting, asked.optimizers.split(","), asked.out)
            url = StorageUrl.of_file(sweep.folder / "trials.db")
            ended = carry_through(sweep, url, asked.jobs, RunOptions(), command=COMMAND)
            found += [entry(setting, winner) for winner in conclude(sweep, ended).winners]
    except LabError as error:
        sys.exit(str(error))
    merge(found)


if __name__ == "__main__":
    main()
