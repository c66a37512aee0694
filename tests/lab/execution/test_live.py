"""The table of runs while they are trained, and the lines in its place."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lpsgd.lab.events import (
    AssignedEvent,
    CurvatureEvent,
    CurvatureProgressEvent,
    EndEvent,
    EpochEvent,
    ErrorEvent,
    InterruptedEvent,
    StartEvent,
    StepEvent,
)
from lpsgd.lab.execution.live import RunsDisplay
from lpsgd.lab.execution.progress import progress_line, progress_table, time_left
from lpsgd.lab.plan import Task
from lpsgd.lab.store.metrics_file import MetricsRow
from lpsgd.lab.store.status import RunProgress
from tests.lab.small_runs import small_recipe


class ManualClock:
    """Time as the test wants it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def epoch_event(epoch: int, step: int = 0, **scores: float) -> EpochEvent:
    """The end of an epoch, with these scores and no others."""
    return EpochEvent(metrics=MetricsRow(epoch=epoch, step=step, **scores))


def make_tasks(seeds: int, folder: Path = Path("runs")) -> list[Task]:
    return [
        Task(label, small_recipe(seed=seed), folder / f"{label}{seed}")
        for seed in range(seeds)
        for label in ("sgd", "adamw")
    ]


def terminal_console(height: int = 30) -> tuple[io.StringIO, Console]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=110, height=height, highlight=False)
    return stream, console


def shown_rows(display: RunsDisplay) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=110).print(display._table())
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_one_row_for_each_run() -> None:
    stream, console = terminal_console()
    runs, clock = make_tasks(2), ManualClock()
    with RunsDisplay(runs, console, clock=clock) as display:
        display.listen(runs[0], AssignedEvent())
        display.listen(runs[0], StartEvent(step=0, total_steps=8))
        assert shown_rows(display)[1] == "sgd seed 0 running 0/2"
        clock.now = 6.0
        display.listen(runs[0], StepEvent(step=2))
        assert shown_rows(display)[1] == "sgd seed 0 running 0/2 18.0 s"
        clock.now = 10.0
        display.listen(runs[0], epoch_event(1, step=4, test_top1=91.5))
        assert shown_rows(display)[1:] == [
            "sgd seed 0 running 1/2 91.50 % 10.0 s",
            "adamw seed 0 queued",
            "sgd seed 1 queued",
            "adamw seed 1 queued",
            # this one's 10 s, and 20 s for each that waits, one after the other
            "4 runs: 1 running, 3 queued; about 70.0 s left",
        ]
        display.listen(runs[1], AssignedEvent())
        assert shown_rows(display)[-1] == "4 runs: 2 running, 2 queued; about 35.0 s left"
        display.listen(runs[1], epoch_event(1, test_top1=math.nan))
        display.listen(runs[0], EndEvent(state="complete", epochs=2))
        display.listen(runs[1], EndEvent(state="diverged", epochs=1, reason="the loss"))
        display.listen(runs[2], AssignedEvent())
        display.listen(runs[2], ErrorEvent(text="no disk"))
        display.listen(runs[3], InterruptedEvent(text="stopped"))
        assert shown_rows(display)[1:] == [
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
    _, console = terminal_console(height=12)
    runs = make_tasks(10)
    with RunsDisplay(runs, console) as display:
        for task in runs[:10]:
            display.listen(task, AssignedEvent())
        display.listen(runs[0], epoch_event(1, test_top1=91.5))
        display.listen(runs[2], EndEvent(state="complete", epochs=2))
        display.listen(runs[4], ErrorEvent(text="no disk"))
        assert shown_rows(display) == [
            "optimizer ended queued now",
            "sgd 2/10 5 seed 0: epoch 1/2 (91.50 %), seed 3: epoch 0/2, seed 4: epoch 0/2, "
            "and 1 more",
            "adamw 0/10 5 seed 0: epoch 0/2, seed 1: epoch 0/2, seed 2: epoch 0/2, and 2 more",
            "20 runs: 1 done, 1 failed, 8 running, 10 queued",
        ]


def test_a_resumed_run_is_timed_from_where_it_resumed() -> None:
    runs, clock = make_tasks(1), ManualClock()
    display = RunsDisplay(runs, terminal_console()[1], clock=clock)
    display.listen(runs[0], AssignedEvent())
    display.listen(runs[0], StartEvent(step=4, total_steps=8))
    clock.now = 10.0
    display.listen(runs[0], StepEvent(step=6))
    assert shown_rows(display)[1] == "sgd seed 0 running 0/2 10.0 s"


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """One at the end of each run, one about all of them now and then, and no more."""
    runs, clock = make_tasks(2), ManualClock()
    plain = Console(file=io.StringIO(), force_terminal=False)
    with RunsDisplay(runs, plain, clock=clock) as display:
        display.listen(runs[0], AssignedEvent())
        display.listen(runs[0], StartEvent(step=0, total_steps=1000))
        for step in range(1, 501):
            clock.now += 0.2
            display.listen(runs[0], StepEvent(step=step))
        display.listen(runs[0], epoch_event(1, step=500, test_top1=91.5))
        display.listen(runs[0], EndEvent(state="complete", epochs=2))
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
    assert [column.header for column in progress_table(runs).columns][:2] == ["network", "run"]
    assert [column.header for column in progress_table(runs, rows=2).columns][:2] == [
        "network",
        "optimizer",
    ]
    assert time_left(runs) == pytest.approx(100 + 200 + 2), "each at the pace of its network"
    assert progress_line(runs) == "4 runs: 1 done, 1 running, 2 queued; about 5 min left"
    assert time_left(runs[2:]) is None, "nothing is known of the pace"


def test_a_search_shows_validation_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    runs = make_tasks(1)
    display = RunsDisplay(runs, Console(file=io.StringIO(), force_terminal=False))
    display.listen(runs[0], epoch_event(1, val_top1=55.5))
    display.listen(runs[0], EndEvent(state="paused", epochs=1))
    told = capsys.readouterr().err
    assert told == "[0/2] sgd seed 0: paused after epoch 1, validation accuracy 55.50 %\n"


def test_names_and_reasons_are_not_read_as_markup() -> None:
    run = replace(make_tasks(1)[0], label="sgd[bold]")
    display = RunsDisplay([run], terminal_console()[1])
    display.listen(run, ErrorEvent(text="[enforce fail] of [/tmp/x]"))
    assert shown_rows(display)[1] == "sgd[bold] seed 0 failed 0/2 [enforce fail] of [/tmp/x]"
    stream = io.StringIO()
    Console(file=stream, width=110).print(progress_table(list(display._runs.values()), rows=0))
    assert "sgd[bold]" in stream.getvalue()


def test_lines_of_a_reproduction_name_target_network_and_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs, clock = make_tasks(1), ManualClock()
    console = Console(file=io.StringIO(), force_terminal=False)
    with RunsDisplay(runs, console, title="fig2", clock=clock) as display:
        display.listen(runs[0], AssignedEvent())
        display.listen(runs[0], epoch_event(2, test_top1=91.5))
        display.listen(runs[0], EndEvent(state="complete", epochs=2))
        clock.now = 100.0
        display.listen(runs[1], StepEvent(step=1))
    assert capsys.readouterr().err.splitlines() == [
        "fig2 [1/2] mlp / digits, sgd seed 0: done, test accuracy 91.50 %",
        "fig2: 2 runs: 1 done, 1 queued",
    ]


def test_a_measurement_of_curvature_shows_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fig. 1 measures for hours; nothing of it was told."""
    clock = ManualClock()
    monkeypatch.setattr("lpsgd.curvature.progress.time.monotonic", clock)
    runs = make_tasks(1)
    with RunsDisplay(runs, Console(file=io.StringIO()), title="fig1", clock=clock) as display:
        for done in range(1, 5):
            clock.now += 11
            label = "curvature at epoch 0"
            display.listen(runs[0], CurvatureProgressEvent(label=label, done=done, total=4))
        display.listen(runs[0], CurvatureEvent(text="curvature at epoch 0: λ from -1 to 2"))
    # the clock starts with the first product
    name = "fig1 [0/2] mlp / digits, sgd seed 0: curvature at epoch 0: "
    assert capsys.readouterr().err.splitlines() == [
        f"{name}2/4 products, 0:00:11 left",
        f"{name}3/4 products, 0:00:08 left",
        f"{name}λ from -1 to 2",
    ]


def test_a_measurement_is_a_note_in_the_table() -> None:
    _, console = terminal_console()
    runs = make_tasks(1)
    with RunsDisplay(runs, console) as display:
        display.listen(runs[0], AssignedEvent())
        for done in (1, 2):
            event = CurvatureProgressEvent(label="curvature at epoch 0", done=done, total=2)
            display.listen(runs[0], event)
            told = shown_rows(display)[1] == (
                "sgd seed 0 running 0/2 curvature at epoch 0: 1/2 products"
            )
            assert told == (done == 1)
