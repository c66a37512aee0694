"""Executors: what each adds to a run, flat memory over hundreds of runs, and nothing run twice.

python benchmarks/executors.py [--runs 500] [--executors here,local,ray]

The runs are short synthetic ones, one at a time: `here` trains them in this process, `local` in
one process of the local executor, `ray` in one slot of Ray on this machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from lpsgd.lab.events import AssignedEvent, RunEvent
from lpsgd.lab.execution.executor import ExecutorChoice, TaskListener, making_executor
from lpsgd.lab.plan import Task, resolve
from lpsgd.lab.store.run_record import load_run
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions

SMALL = {"epochs": 1, "width": 8, "train_size": 64, "test_size": 32, "batch_size": 32}
PAGE = os.sysconf("SC_PAGE_SIZE")
CONSOLE = Console(width=110, highlight=False)


@dataclass
class Watch:
    """What was heard of the runs, and the memory at the end of each."""

    began: float = field(default_factory=time.perf_counter)
    events: Counter[tuple[str, Path]] = field(default_factory=Counter)
    ended: list[float] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)

    def listen(self, task: Task, event: RunEvent) -> None:
        self.events[event.kind, task.folder] += 1
        if event.kind == "end":
            self.ended.append(time.perf_counter())
            self.parent.append(resident(os.getpid()))
            self.workers.append(max(map(resident, descendants()), default=0))


def resident(pid: int) -> int:
    """Bytes of memory that a process has in RAM."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def descendants() -> list[int]:
    """The processes below this one that train."""
    parents, names = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = status.read_text().partition(" (")
        except OSError:
            continue
        names[int(pid)], _, rest = rest.rpartition(") ")
        parents[int(pid)] = int(rest.split()[1])

    def below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == os.getpid():
                return True
        return False

    return [pid for pid in parents if below(pid) and names[pid] not in ("raylet", "gcs_server")]


def make_tasks(runs: int, folder: Path) -> list[Task]:
    recipe = resolve(SMALL, "sgd:lr=0.05")
    return [
        Task("sgd", recipe.with_changes(seed=seed), folder / f"seed-{seed}") for seed in range(runs)
    ]


def train_here(tasks: list[Task], listen: TaskListener) -> None:
    for task in tasks:
        listen(task, AssignedEvent())
        train(task.recipe, task.folder, listen=lambda event, task=task: listen(task, event))


def measure(name: str, runs: int) -> Watch:
    """Run all tasks with one executor in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        tasks, watch = make_tasks(runs, Path(folder)), Watch()
        if name == "here":
            train_here(tasks, watch.listen)
        else:
            lanes = {"jobs": 1} if name == "local" else {"cpus_per_run": os.cpu_count()}
            choice = ExecutorChoice(name, **lanes)  # type: ignore[arg-type]
            with making_executor(choice, tasks, RunOptions()) as executor:
                executor.run(tasks, watch.listen, threading.Event())
        check_once(watch, tasks)
        return watch


def check_once(watch: Watch, tasks: list[Task]) -> None:
    """Every run was assigned once, ended once and has one line for its one epoch."""
    for task in tasks:
        for event in ("assigned", "end"):
            assert watch.events[event, task.folder] == 1, (event, task.folder)
        run = load_run(task.folder, task.folder)
        assert run.state == "complete", task.folder
        assert len(run.history) == task.recipe.epochs, task.folder
    assert len(watch.ended) == len(tasks)


def quick(gaps: list[float]) -> float:
    """The middle of the quickest fifth: what else the machine does makes the others longer."""
    return sorted(gaps)[len(gaps) // 10] if gaps else float("nan")


def growth(sizes: list[int]) -> str:
    """From the mean of the second tenth (the first warms up) to that of the last, per run."""
    tenth = max(1, len(sizes) // 10)
    first, last = mean(sizes[tenth : 2 * tenth] or sizes), mean(sizes[-tenth:])
    each = (last - first) / max(1, len(sizes) - 2 * tenth)
    return f"{first / 1e6:.0f} -> {last / 1e6:.0f} MB ({each / 1e3:+.1f} kB per run)"


def overheads(names: list[str], rounds: int, runs: int) -> None:
    """The executors take turns, so that whatever else the machine does hits all of them alike."""
    starts: dict[str, list[float]] = {name: [] for name in names}
    gaps: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            watch = measure(name, runs)
            starts[name].append(watch.ended[0] - watch.began)
            gaps[name] += [b - a for a, b in pairwise(watch.ended)]
    each = {name: quick(found) for name, found in gaps.items()}
    columns = ("executor", "first run after", "then per run", "more than here")
    table = make_table(f"{rounds} turns of {runs} runs, one at a time", columns)
    for name in names:
        more = f"{1000 * (each[name] - each['here']):+.0f} ms" if "here" in each else ""
        table.add_row(name, f"{min(starts[name]):.1f} s", f"{1000 * each[name]:.0f} ms", more)
    CONSOLE.print(table)
    if {"local", "ray"} <= each.keys():
        more = f"{1000 * (each['ray'] - each['local']):+.0f} ms"
        CONSOLE.print(f"Ray against local: {each['ray'] / each['local']:.2f} ({more} per run)\n")


def memory(names: list[str], runs: int) -> None:
    """Train many runs, count them, and see whether memory grows."""
    columns = ("executor", "memory of the parent", "of the largest worker")
    table = make_table(f"{runs} runs, one at a time", columns)
    for name in names:
        watch = measure(name, runs)
        table.add_row(name, growth(watch.parent), growth(watch.workers) if watch.workers else "")
    CONSOLE.print(table)
    CONSOLE.print(f"Each of the {runs} runs began once, ended once, and was trained once.")


def make_table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column == "executor" else "right")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--executors", default="here,local,ray")
    parser.add_argument("--rounds", type=int, default=3, help="turns, to see what a run costs")
    parser.add_argument("--turn", type=int, default=15, help="runs of a turn")
    parser.add_argument("--runs", type=int, default=40, help="in a row, to see memory; 0: none")
    asked = parser.parse_args()
    names = asked.executors.split(",")
    if asked.rounds:
        overheads(names, asked.rounds, asked.turn)
    if asked.runs:
        memory([name for name in names if name != "here"], asked.runs)


if __name__ == "__main__":
    main()
