"""Search the learning rates of the paper's Table 1 again, at the length of the CPU scale.

python scripts/retune_paper.py [--models vgg11,resnet18,resnet50] [--jobs 2] [--out DIR]

The paper's rates were tuned for 200 epochs. Here every optimizer of a network gets the same five:
the paper's times 1/3, 1, 3, 10 and 30, all else as in Tables 4 to 6; 1,000 of the 5,000 images are
held out, and the best accuracy on them wins. Every trial goes to docs/results/paper/retuned, the
winners to src/lpsgd/lab/paper/retuned.csv, from where `--choose settings=retuned` takes them.
After a stop, the same command resumes.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import pages  # noqa: E402

from lpsgd.lab import sweep  # noqa: E402
from lpsgd.lab.errors import LabError  # noqa: E402
from lpsgd.lab.paper.choices import read_choices  # noqa: E402
from lpsgd.lab.paper.protocol import Setup, recipe  # noqa: E402
from lpsgd.lab.paper.scales import get_scale, model_names  # noqa: E402
from lpsgd.lab.paper.tables import published  # noqa: E402
from lpsgd.lab.recipe import Recipe  # noqa: E402
from lpsgd.lab.store.disk.files import write_text  # noqa: E402

SCALE, DATASET = "cpu", "cifar10"
FACTORS = (1 / 3, 1, 3, 10, 30)
HELD_OUT = 1000
TRIALS = ROOT / "docs/results/paper/retuned/trials.csv"
WINNERS = ROOT / "src/lpsgd/lab/paper/retuned.csv"
COLUMNS = ("scale", "dataset", "model", "optimizer", "lr", "state", "val_top1", "val_nll")
_NOT_SHARED = ("optimizer", "settings", "seed", "val_size")


def rates(row: published.Setting) -> list[float]:
    """What is tried: three digits are enough."""
    return [float(f"{row.lr * factor:.3g}") for factor in FACTORS]


def search(model: str, out: Path, jobs: int | None) -> Iterator[tuple[Any, ...]]:
    """Every trial of the optimizers of one network."""
    scale = get_scale(SCALE)
    setup = Setup(scale, read_choices(), out, (model,), scale.seeds)
    rows = [r for r in published.setting_rows() if (r.dataset, r.model) == (DATASET, model)]
    made = [recipe(row, setup) for row in rows]
    space = {
        each.optimizer: _choices(each, rates(row)) for each, row in zip(made, rows, strict=True)
    }
    shared = made[0].model_dump(exclude=set(_NOT_SHARED))
    found = sweep(space, metric="top1", val_size=HELD_OUT, out=out / model, jobs=jobs, **shared)
    names = {lab: paper for paper, lab in published.OPTIMIZERS.items()}
    for trial in sorted(found.outcome.trials, key=lambda t: (t.label, t.settings["lr"])):
        place = (SCALE, DATASET, model, names[trial.label])
        yield *place, trial.settings["lr"], trial.state, trial.top1, trial.nll


def _choices(made: Recipe, lrs: list[float]) -> dict[str, Any]:
    """A search space: the rates, and one choice of everything else that has a value."""
    fixed = {name: [value] for name, value in made.settings.items() if value is not None}
    return {**fixed, "lr": lrs}


def winners(trials: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Of each optimizer the rate with the best accuracy; what diverged has none."""
    best: dict[tuple[Any, ...], tuple[float, Any]] = {}
    for *place, lr, _, top1, _ in trials:
        score = float(top1) if top1 not in (None, "") else -1.0
        if tuple(place) not in best or score > best[tuple(place)][0]:
            best[tuple(place)] = score, lr
    return [(*place, lr) for place, (_, lr) in best.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Search the networks that are asked for, and keep what is known of the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="vgg11,resnet18,resnet50")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs/retuned"))
    asked = parser.parse_args(arguments)
    try:
        for model in model_names(asked.models):
            trials = list(search(model, asked.out, asked.jobs))
            known: list[Sequence[Any]] = []
            if TRIALS.exists():
                rows = list(csv.reader(TRIALS.read_text(encoding="utf-8").splitlines()))[1:]
                known = [row for row in rows if row[COLUMNS.index("model")] != model]
            TRIALS.parent.mkdir(parents=True, exist_ok=True)
            write_text(TRIALS, pages.csv_text(COLUMNS, [*known, *trials]))
            write_text(WINNERS, pages.csv_text(COLUMNS[:5], winners([*known, *trials])))
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
