"""The table of runs while they go on, and the lines in its place."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lpsgd.lab.execution.live import RunsDisplay
from lpsgd.lab.execution.progress import RunProgress, summary, table, time_left
from lpsgd.lab.plan import Task
from tests.lab.small_runs import small_recipe


class Clock:
    """Time as the test wants it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tasks(seeds: int, folder: Path = Path("runs")) -> list[Task]:
    return [
        Task(label, small_recipe(seed=seed), folder / f"{label}{seed}")
        for seed in range(seeds)
        for label in ("sgd", "adamw")
    ]


def terminal(height: int = 30) -> tuple[io.StringIO, Console]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=110, height=height, highlight=False)
    return stream, console


def rows(display: RunsDisplay) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=110).print(display._table())
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_one_row_for_each_run() -> None:
    stream, console = terminal()
    runs, clock = tasks(2), Clock()
    with RunsDisplay(runs, console, clock=clock) as display:
        display.listen(runs[0], {"event": "begin"})
        display.listen(runs[0], {"event": "start", "step": 0, "total_steps": 8})
        assert rows(display)[1] == "sgd seed 0 running 0/2"
        clock.now = 6.0
        display.listen(runs[0], {"event": "step", "step": 2})
        assert rows(display)[1] == "sgd seed 0 running 0/2 18.0 s"
        clock.now = 10.0
        display.listen(runs[0], {"event": "epoch", "epoch": 1, "step": 4, "test_top1": 91.5})
        assert rows(display)[1:] == [
            "sgd seed 0 running 1/2 91.50 % 10.0 s",
            "adamw seed 0 queued",
            "sgd seed 1 queued",
            "adamw seed 1 queued",
            # this one's 10 s, and 20 s for each that waits, one after the other
            "4 runs: 1 running, 3 queued; about 70.0 s left",
        ]
        display.listen(runs[1], {"event": "begin"})
        assert rows(display)[-1] == "4 runs: 2 running, 2 queued; about 35.0 s left"
        display.listen(runs[1], {"event": "epoch", "epoch": 1, "test_top1": "nan"})
        display.listen(runs[0], {"event": "end", "state": "complete", "reason": None})
        display.listen(runs[1], {"event": "end", "state": "diverged", "reason": "the loss"})
        display.listen(runs[2], {"event": "begin"})
        display.listen(runs[2], {"event": "error", "text": "no disk", "exit_code": 1})
        display.listen(runs[3], {"event": "interrupted", "text": "stopped"})
        assert rows(display)[1:] == [
            "sgd seed 0 done 1/2 91.50 %",
            "adamw seed 0 diverged 1/2 - % the loss",
            "sgd seed 1 failed 0/2 no disk",
            "adamw seed 1 queued",
            "4 runs: 1 done, 1 diverged, 1 failed, 1 queued",
        ]
    shown = stream.getvalue()
    assert "[1/4] sgd seed 0: done, test accuracy 91.50 %" in shown
    assert "[2/4] adamw seed 0: diverged: the loss" in shown
    assert "[3/4] sgd seed 1: failed: no disk" in shown


def test_one_row_for_each_optimizer_when_there_are_many() -> None:
    _, console = terminal(height=12)
    runs = tasks(10)
    with RunsDisplay(runs, console) as display:
        for task in runs[:10]:
            display.listen(task, {"event": "begin"})
        display.listen(runs[0], {"event": "epoch", "epoch": 1, "test_top1": 91.5})
        display.listen(runs[2], {"event": "end", "state": "complete", "reason": None})
        display.listen(runs[4], {"event": "error", "text": "no disk", "exit_code": 1})
        assert rows(display) == [
            "optimizer ended queued now",
            "sgd 2/10 5 seed 0: epoch 1/2 (91.5 %), seed 3: epoch 0/2, seed 4: epoch 0/2, "
            "and 1 more",
            "adamw 0/10 5 seed 0: epoch 0/2, seed 1: epoch 0/2, seed 2: epoch 0/2, and 2 more",
            "20 runs: 1 done, 1 failed, 8 running, 10 queued",
        ]


def test_a_resumed_run_is_timed_from_where_it_went_on() -> None:
    runs, clock = tasks(1), Clock()
    display = RunsDisplay(runs, terminal()[1], clock=clock)
    display.listen(runs[0], {"event": "begin"})
    display.listen(runs[0], {"event": "start", "step": 4, "total_steps": 8})
    clock.now = 10.0
    display.listen(runs[0], {"event": "step", "step": 6})
    assert rows(display)[1] == "sgd seed 0 running 0/2 10.0 s"


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """One at the end of each run, one about all of them now and then, and no more."""
    runs, clock = tasks(2), Clock()
    plain = Console(file=io.StringIO(), force_terminal=False)
    with RunsDisplay(runs, plain, clock=clock) as display:
        display.listen(runs[0], {"event": "begin"})
        display.listen(runs[0], {"event": "start", "step": 0, "total_steps": 1000})
        for step in range(1, 501):
            clock.now += 0.2
            display.listen(runs[0], {"event": "step", "step": step})
        display.listen(runs[0], {"event": "epoch", "epoch": 1, "step": 500, "test_top1": 91.5})
        display.listen(runs[0], {"event": "end", "state": "complete", "reason": None})
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "4 runs: 1 running, 3 queued; about 12 min left",
        "[1/4] sgd seed 0: done, test accuracy 91.50 %",
    ]


def test_runs_of_several_networks_are_told_apart() -> None:
    runs = [
        RunProgress("sgd", 0, "mlp / digits", 2, "a", "complete", 2, seconds_per_epoch=1.0),
        RunProgress("sgd", 0, "vgg11 / cifar10", 2, "b", "running", 1, None, 100.0, 100.0),
        RunProgress("sgd", 1, "vgg11 / cifar10", 2, "c"),
        RunProgress("sgd", 1, "mlp / digits", 2, "d"),
    ]
    assert [column.header for column in table(runs).columns][:2] == ["network", "run"]
    assert [column.header for column in table(runs, rows=2).columns][:2] == ["network", "optimizer"]
    assert time_left(runs) == pytest.approx(100 + 200 + 2), "each at the pace of its network"
    assert summary(runs) == "4 runs: 1 done, 1 running, 2 queued; about 5 min left"
    assert time_left(runs[2:]) is None, "nothing is known of the pace"


def test_a_search_shows_validation_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    runs = tasks(1)
    display = RunsDisplay(runs, Console(file=io.StringIO(), force_terminal=False))
    scores = {"test_top1": None, "val_top1": 55.5}
    display.listen(runs[0], {"event": "epoch", "epoch": 1, **scores})
    display.listen(runs[0], {"event": "end", "state": "paused", "epochs": 1, "reason": None})
    told = capsys.readouterr().err
    assert told == "[0/2] sgd seed 0: paused after epoch 1, validation accuracy 55.50 %\n"


def test_names_and_reasons_are_not_read_as_markup() -> None:
    run = replace(tasks(1)[0], label="sgd[bold]")
    display = RunsDisplay([run], terminal()[1])
    display.listen(run, {"event": "error", "text": "[enforce fail] of [/tmp/x]", "exit_code": 1})
    assert rows(display)[1] == "sgd[bold] seed 0 failed 0/2 [enforce fail] of [/tmp/x]"
    stream = io.StringIO()
    Console(file=stream, width=110).print(table(list(display._runs.values()), rows=0))
    assert "sgd[bold]" in stream.getvalue()
