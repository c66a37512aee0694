"""Screen the rules of the l_p family and their peers at equal trials.

    PYTHONPATH=benchmarks python benchmarks/screening.py [--tasks convnet,gpt,...] [--jobs 2]

Each candidate of screening.toml is trained with six learning rates a factor of two apart and scored
on the validation split; where the best is the lowest or highest of them, the next one is tried too.
The best then trains on five fresh seeds, the same for all, and is scored on the test set.

Every finished run is a row of docs/results/screening/runs.csv and is not trained again: after a
stop, the same command resumes. What the rows say is written by scripts/draw_screening.py.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any

from lpsgd.lab.errors import LabError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.execution.run import run_tasks
from lpsgd.lab.plan import Task, file_safe, resolve
from lpsgd.lab.store.disk.files import write_text
from lpsgd.lab.store.run_record import load_run
from lpsgd.lab.training.options import RunOptions
from lpsgd.peers import grammar

HERE = Path(__file__).parent
TASKS = HERE / "screening.toml"
RESULTS = HERE.parent / "docs/results/screening/runs.csv"

RATES = 6
MOST_RATES = 10  # however far the best moves
TUNING_SEED = 1000
SEEDS = range(5)
UNUSED_TEST = 16  # a run always scores some test images


@dataclass(frozen=True, order=True)
class Row:
    """One finished run. Scores are those of the last epoch; a diverged run has none."""

    task: str
    candidate: str
    split: str  # "val" of a trial, "test" of a winner
    lr: float
    seed: int
    top1: float | None
    nll: float | None
    optimizer: str

    @property
    def key(self) -> tuple[str, str, str, float, int]:
        """What distinguishes a run from the others."""
        return self.task, self.candidate, self.split, self.lr, self.seed


@dataclass(frozen=True)
class Screening:
    """What screening.toml asks for, and the rows that are there."""

    tasks: Mapping[str, Mapping[str, Any]]
    candidates: Mapping[str, Mapping[str, Any]]
    rows: dict[tuple[str, str, str, float, int], Row]

    def trials(self, task: str, candidate: str) -> list[Row]:
        """The trials of one candidate, by rising learning rate."""
        found = (row for row in self.rows.values() if row.split == "val")
        return sorted(row for row in found if (row.task, row.candidate) == (task, candidate))

    def merit(self, row: Row) -> float:
        """The higher, the better."""
        if row.top1 is None or row.nll is None:
            return -math.inf
        return row.top1 if self.tasks[row.task]["metric"] == "top1" else -row.nll

    def wanted_rates(self, task: str, candidate: str) -> list[float]:
        """The learning rates to try next: the first six, then those beyond an edge that is best."""
        low = float(self.candidates[candidate]["lr"])
        rates = [low * 2**k for k in range(RATES)]
        done = self.trials(task, candidate)
        known = {row.lr for row in done}
        if missing := [lr for lr in rates if lr not in known]:
            return missing
        best = self.best_rate(task, candidate)
        beyond = {min(known): min(known) / 2, max(known): max(known) * 2}
        return [beyond[best]] if best in beyond and len(known) < MOST_RATES else []

    def names(self, task: str, part: str = "") -> list[str]:
        """The candidates of a task whose label has ``part`` in it."""
        listed = self.tasks[task].get("candidates", self.candidates)
        return [name for name in listed if part.lower() in name.lower()]

    def values(self, task: str, out: Path) -> dict[str, Any]:
        """The recipe of a task; with ``pretrained``, from the weights that were trained before."""
        asked = self.tasks[task]
        values = {k: v for k, v in asked.items() if k not in ("metric", "candidates", "pretrained")}
        if "pretrained" in asked:
            values["start"] = str(out / task / "pretrained")
        return values

    def best_rate(self, task: str, candidate: str) -> float:
        """The winner of the trials."""
        return max(self.trials(task, candidate), key=self.merit).lr


def read_screening(path: Path, rows: Path) -> Screening:
    """The tasks and candidates, with what is already known."""
    asked = tomllib.loads(path.read_text(encoding="utf-8"))
    tasks: dict[str, dict[str, Any]] = {}
    for name, own in asked["tasks"].items():  # a task may be like an earlier one
        tasks[name] = {**tasks.get(own.pop("like", ""), {}), **own}
    found = read_rows(rows) if rows.exists() else []
    return Screening(tasks, asked["candidates"], {row.key: row for row in found})


def read_rows(path: Path) -> list[Row]:
    """The rows of runs.csv."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    with path.open(encoding="utf-8", newline="") as file:
        return [
            Row(
                **{
                    **row,
                    "lr": float(row["lr"]),
                    "seed": int(row["seed"]),
                    "top1": number(row["top1"]),
                    "nll": number(row["nll"]),
                }
            )
            for row in csv.DictReader(file)
        ]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """All rows, in one order whenever they were made."""
    text = StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in sorted(rows, key=lambda row: row.key))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def plan(
    screening: Screening, task: str, candidate: str, split: str, lr: float, seed: int, out: Path
) -> Task:
    """The run of one row. A trial does not look at the test set, a winner holds nothing out."""
    values = screening.values(task, out)
    values |= {"val_size": 0} if split == "test" else {"test_size": UNUSED_TEST}
    optimizer, settings = grammar.parse(screening.candidates[candidate]["spec"])
    values |= {"optimizer": optimizer, "settings": {**settings, "lr": lr}, "seed": seed}
    folder = out / task / file_safe(candidate) / f"{split}-{lr:g}-{seed}"
    return Task(f"{task} {candidate} {lr:g}", resolve(values), folder)


def train(
    screening: Screening,
    wanted: Sequence[tuple[str, str, str, float, int]],
    out: Path,
    executor: ExecutorChoice,
) -> None:
    """Train what has no row yet, and keep its row."""
    missing = [key for key in wanted if key not in screening.rows]
    tasks = {key: plan(screening, *key, out) for key in missing}
    try:
        failures = run_tasks(list(tasks.values()), executor, RunOptions()) if tasks else []
    finally:  # what was done when the user interrupted counts
        for key, task in tasks.items():
            if row := _row(key, task):
                screening.rows[key] = row
        write_rows(RESULTS, screening.rows.values())
    if failures:
        raise LabError("\n  ".join([f"{len(failures)} runs failed:", *failures]))


def _row(key: tuple[str, str, str, float, int], task: Task) -> Row | None:
    """What a run's folder says, if the run has ended."""
    run = load_run(task.folder, task.folder)
    if run.state not in ("complete", "diverged"):
        return None
    last = run.history[-1] if run.state == "complete" else None
    scores = (None, None)
    if last is not None:
        scores = (
            (last.val_top1, last.val_nll) if key[2] == "val" else (last.test_top1, last.test_nll)
        )
    text = ",".join(f"{k}={v}" for k, v in task.recipe.settings.items())
    return Row(*key, *scores, f"{task.recipe.optimizer}:{text}")


def pretrain(screening: Screening, task: str, out: Path, executor: ExecutorChoice) -> None:
    """Train what the runs of a fine-tuning task start from, once."""
    if "pretrained" not in screening.tasks[task]:
        return
    values = screening.values(task, out) | screening.tasks[task]["pretrained"]
    optimizer, settings = grammar.parse(values.pop("optimizer"))
    values |= {"optimizer": optimizer, "settings": settings, "val_size": 0, "start": None}
    first = Task(f"{task} before", resolve(values), out / task / "pretrained")
    if failures := run_tasks([first], executor, RunOptions()):
        raise LabError(failures[0])


def main() -> None:
    """Train the trials, then the winners."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=",".join(read_screening(TASKS, RESULTS).tasks))
    parser.add_argument("--candidates", help="part of a label; default: all")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs/screening"))
    asked = parser.parse_args()
    screening = read_screening(TASKS, RESULTS)
    executor = ExecutorChoice(jobs=asked.jobs)
    try:
        for task in asked.tasks.split(","):
            names = screening.names(task, asked.candidates or "")
            pretrain(screening, task, asked.out, executor)
            while trials := [
                (task, name, "val", lr, TUNING_SEED)
                for name in names
                for lr in screening.wanted_rates(task, name)
            ]:
                train(screening, trials, asked.out, executor)
            winners = [
                (task, name, "test", screening.best_rate(task, name), seed)
                for seed in SEEDS
                for name in names
            ]
            train(screening, winners, asked.out, executor)
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
