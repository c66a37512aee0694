"""Run the confirmatory study that docs/study.md describes.

    python benchmarks/study.py [--tasks convnet,gpt,...] [--jobs 2] [--executor ray] [--out DIR]

For each task of study.toml, `lpsgd.lab.sweep` tries the same number of learning rates of every
competitor on the validation split, and `lpsgd.lab.compare` trains the winners on fresh seeds and
scores them on the test set. After a stop, the same command resumes. What a reader needs is kept in
docs/results/study: trials.csv (every trial) and epochs.csv (every epoch of every run).
"""

from __future__ import annotations

import argparse
import csv
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from lpsgd.lab import compare, sweep
from lpsgd.lab.api.comparison_result import ComparisonResult
from lpsgd.lab.api.sweep_result import SweepResult
from lpsgd.lab.errors import LabError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.store.disk.files import write_text

HERE = Path(__file__).parent
PLAN = HERE / "study.toml"
RESULTS = HERE.parent / "docs/results/study"
TRIALS = ("task", "label", "lr", "state", "val_top1", "val_nll")
EPOCHS = (
    *("task", "label", "lr", "seed", "state", "epoch", "step", "test_top1", "test_nll"),
    *("seconds", "optimizer_seconds", "state_bytes", "parameters"),
)
_NOT_RECIPE = ("metric", "like", "lr_scale")


def read_plan(path: Path = PLAN) -> dict[str, Any]:
    """The plan; a task may be like an earlier one."""
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    tasks: dict[str, dict[str, Any]] = {}
    for name, own in plan["tasks"].items():
        tasks[name] = {**tasks.get(own.get("like", ""), {}), **own}
    return {**plan, "tasks": tasks}


def space(plan: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """What is searched: the same number of rates for each competitor, a factor of two apart."""
    scale = task.get("lr_scale", 1.0)
    return {
        label: {**given, "lr": [given["lr"] * scale * 2**k for k in range(plan["trials"])]}
        for label, given in plan["competitors"].items()
    }


def run_task(
    plan: Mapping[str, Any], name: str, out: Path, executor: ExecutorChoice
) -> tuple[SweepResult, ComparisonResult]:
    """Search, then compare the winners on fresh seeds."""
    task = plan["tasks"][name]
    recipe = {key: value for key, value in task.items() if key not in _NOT_RECIPE}
    found = sweep(
        space(plan, task),
        metric=task["metric"],
        out=out / name / "search",
        executor=executor,
        **recipe,
    )
    result = compare(
        recipes=found.recipes,
        reference="AdamW",
        seeds=plan["seeds"],
        out=out / name / "seeds",
        executor=executor,
    )
    return found, result


def trial_rows(task: str, found: SweepResult) -> Iterable[tuple[Any, ...]]:
    """Every trial of a search."""
    for trial in found.outcome.trials:
        lr = trial.settings["lr"]
        yield task, trial.label, lr, trial.state, trial.top1, trial.nll


def epoch_rows(task: str, result: ComparisonResult) -> Iterable[tuple[Any, ...]]:
    """Every epoch of the runs that ended; of one that diverged, those before and an end."""
    for run in result.analysis.runs:
        ended = run.result
        if ended is None:
            continue
        first = (task, run.label, run.settings["lr"], run.seed, run.state)
        cost = (ended.state_bytes, ended.parameters)
        for row in run.history:
            scores = (row.test_top1, row.test_nll, row.seconds, row.optimizer_seconds)
            yield *first, row.epoch, row.step, *scores, *cost
        if run.state == "diverged":
            yield *first, *(None,) * 6, *cost


def keep(path: Path, columns: Sequence[str], task: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Put the rows of a task into ``path``, in place of those that it had."""
    known: list[list[str]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            known = [row for row in list(csv.reader(file))[1:] if row[0] != task]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([*known, *rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the tasks that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--tasks", help="default: all of the plan, in its order")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--executor", default="local")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    plan = read_plan(asked.plan)
    try:
        executor = ExecutorChoice(asked.executor, jobs=asked.jobs)
        for task in asked.tasks.split(",") if asked.tasks else plan["tasks"]:
            found, result = run_task(plan, task, asked.out, executor)
            keep(asked.results / "trials.csv", TRIALS, task, trial_rows(task, found))
            keep(asked.results / "epochs.csv", EPOCHS, task, epoch_rows(task, result))
            print(f"{task}: {result.verdict}", flush=True)
            if result.failed:
                sys.exit(f"{task}: {result.failed}")
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
