"""Sweeps whose trials are not trained but made up, so that the search is tested in no time.

``python -m tests.lab.search.fake_training ARGUMENTS`` is the command line with such trials.
Environment: FAKE_LOG (a file that gets a line "PID FOLDER FROM TO" for each), FAKE_KILL_AFTER
(trainings after which the process kills itself, in the middle of one), FAKE_SECONDS (how long each
takes).
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna

from lpsgd.lab.plan import Task
from lpsgd.lab.search.storage import StorageUrl, open_storage
from lpsgd.lab.store.disk.jsonio import write_json
from lpsgd.lab.store.metrics_file import MetricsRow
from lpsgd.lab.store.run_files import RunConfig, RunResult, write_result
from lpsgd.lab.store.run_folder import open_run
from lpsgd.lab.training.options import RunOptions

_count = 0


def accuracy(task: Task, epoch: int) -> float:
    """A smooth hill over log lr with its top near 0.03, higher in later epochs."""
    settings, seed = task.recipe.settings, task.recipe.seed
    distance = math.log10(settings["lr"]) + 1.5
    others = sum(abs(float(settings.get(name) or 0) - 0.5) for name in ("momentum", "weight_decay"))
    return 95 - 9 * distance**2 - others - 20 / epoch + settings.get("p", 2) / 10 + seed / 1e5


def run_tasks(
    tasks: Sequence[Task], choice: Any, options: RunOptions, problem: Any = None
) -> list[str]:
    """What `lpsgd.lab.execution.run` does, without training."""
    for task in tasks:
        _fake(task, options)
    return []


def _fake(task: Task, options: RunOptions) -> None:
    global _count
    assert not options.score_test
    with open_run(task.folder, task.recipe) as run:
        path = task.folder / "metrics.jsonl"
        done = len(path.read_text().splitlines()) if path.exists() else 0
        last = options.until_epoch or task.recipe.epochs
        write_json(task.folder / "config.json", RunConfig.of(task.recipe, task.label).model_dump())
        _log(task.folder, done, last)
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        _count += 1
        if _count == int(os.environ.get("FAKE_KILL_AFTER", "0")):
            run.metrics.append(row(task, done + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        if task.recipe.settings["lr"] > 1e10:
            write_result(
                task.folder, RunResult(state="diverged", epochs=0, reason="the loss became inf")
            )
            return
        for epoch in range(done + 1, last + 1):
            run.metrics.append(row(task, epoch))
        if last == task.recipe.epochs:
            write_result(task.folder, RunResult(state="complete", epochs=last))


def row(task: Task, epoch: int) -> MetricsRow:
    """One epoch; the test scores say the opposite of the validation scores."""
    top1 = accuracy(task, epoch)
    if task.recipe.settings["lr"] > 5:
        top1 = math.nan
    poison = float(os.environ.get("FAKE_POISON", "1"))
    return MetricsRow(
        epoch=epoch,
        val_top1=top1,
        val_nll=10 - top1 / 10,
        test_top1=poison * (100 - top1),
        test_nll=-poison * top1,
    )


def _log(folder: Path, done: int, last: int) -> None:
    if log := os.environ.get("FAKE_LOG"):
        with Path(log).open("a") as stream:
            stream.write(f"{os.getpid()} {folder} {done} {last}\n")


def studies(url: str) -> list[optuna.Study]:
    """The studies of a storage, copied out of it."""
    storage = open_storage(StorageUrl(url))
    found = []
    for name in optuna.get_all_study_names(storage):
        found.append(optuna.create_study(study_name=name, direction="maximize"))
        for trial in optuna.load_study(study_name=name, storage=storage).trials:
            found[-1].add_trial(trial)
    storage.remove_session()
    storage.engine.dispose()
    return found


def main(arguments: list[str]) -> int:
    """The command line with made-up trials and without figures."""
    from lpsgd.lab.cli import app as cli
    from lpsgd.lab.search import run as work
    from lpsgd.lab.search.report import page as report

    work.run_tasks = run_tasks
    report.all_figures = lambda outcome: []
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
