"""The numbers behind the page's charts: each metric's mean over seeds, with bands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Literal

from lpsgd.lab.analysis.comparison import Analysis, OptimizerResult
from lpsgd.lab.analysis.stats import summarise
from lpsgd.lab.store.run_record import RunRecord


@dataclass(frozen=True)
class Chart:
    """One chart: which metric of ``metrics.jsonl`` it shows, and how."""

    key: str
    title: str
    axis: str
    group: Literal["curves", "schedules", "inside"]
    digits: int
    log: bool = False


CHARTS = (
    Chart("test_top1", "Test accuracy", "top-1 accuracy (%)", "curves", 2),
    Chart("test_nll", "Test NLL", "NLL (nats)", "curves", 4),
    Chart("train_nll", "Training NLL, mean over the epoch", "NLL (nats)", "curves", 4, log=True),
    Chart("train_top1", "Training accuracy", "top-1 accuracy (%)", "curves", 2),
    Chart("val_top1", "Validation accuracy", "top-1 accuracy (%)", "curves", 2),
    Chart("val_nll", "Validation NLL", "NLL (nats)", "curves", 4),
    Chart("lr", "Learning rate", "learning rate", "schedules", 6, log=True),
    Chart("p", "Norm exponent p", "p", "schedules", 3),
    Chart("alpha", "Norm exponent p, as 1/(p - 1)", "1/(p - 1); p = inf at 0", "schedules", 4),
    Chart("test_top5", "Test accuracy, top 5", "top-5 accuracy (%)", "inside", 2),
    Chart(
        "train_nll_eval", "Training NLL, whole set in evaluation mode", "NLL (nats)", "inside", 4
    ),
    Chart("update_rms", "Size of the update", "root mean square", "inside", 7, log=True),
    Chart("grad_norm", "Gradient norm", "Euclidean norm", "inside", 4, log=True),
    Chart("grad_density", "Gradient density", "density (0 to 1)", "inside", 4),
    Chart("images_per_second", "Training speed", "images per second", "inside", 0),
)


_LARGE_P = 50


def chart_data(analysis: Analysis) -> dict[str, Any]:
    """What the page's script draws: charts that have data, and the lines of every optimizer."""
    largest_p = max((p or 0.0 for run in analysis.runs for p in run.values("p")), default=0.0)
    # Large and infinite p would leave no room for the others on an axis of p itself.
    unused = "p" if largest_p > _LARGE_P else "alpha"
    charts = [chart for chart in CHARTS if chart.key != unused]
    optimizers = [_optimizer(result, charts) for result in analysis.results]
    drawn = [chart for chart in charts if any(chart.key in o["lines"] for o in optimizers)]
    return {"charts": [asdict(chart) for chart in drawn], "optimizers": optimizers}


def _optimizer(result: OptimizerResult, charts: Sequence[Chart]) -> dict[str, Any]:
    # A mean over runs of which some diverged or stop early would jump where they drop out.
    averaged = [run for run in result.runs if run.state == "complete"]
    averaged = averaged or [run for run in result.runs if run.state == "incomplete"]
    diverged = [run for run in result.runs if run.state == "diverged"]
    lines = {chart.key: _line(averaged, diverged, chart.key) for chart in charts}
    return {
        "label": result.label,
        "lines": {key: line for key, line in lines.items() if line is not None},
    }


def _line(
    averaged: Sequence[RunRecord], diverged: Sequence[RunRecord], key: str
) -> dict[str, Any] | None:
    seeds = [_seed(run, key) for run in (*averaged, *diverged)]
    seeds = [seed for seed in seeds if seed["y"]]
    if not seeds:
        return None
    columns: dict[str, list[Any]] = {
        name: [] for name in ("epoch", "seconds", "mean", "min", "max", "low", "high", "n")
    }
    for epoch, at in _by_epoch([seed for seed in seeds if not seed["diverged"]]).items():
        summary = summarise(at["y"])
        row = {
            "epoch": epoch,
            "seconds": summarise(at["seconds"]).mean,
            "mean": summary.mean,
            "min": min(at["y"]),
            "max": max(at["y"]),
            "low": summary.low,
            "high": summary.high,
            "n": summary.n,
        }
        for name, value in row.items():
            columns[name].append(_short(value))
    return {**columns, "seeds": seeds}


def _by_epoch(seeds: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, list[float]]]:
    """The values of all seeds at each epoch."""
    epochs: dict[int, dict[str, list[float]]] = {}
    for seed in seeds:
        for epoch, seconds, value in zip(seed["epoch"], seed["seconds"], seed["y"], strict=True):
            at = epochs.setdefault(epoch, {"seconds": [], "y": []})
            at["seconds"].append(seconds)
            at["y"].append(value)
    return dict(sorted(epochs.items()))


def _seed(run: RunRecord, key: str) -> dict[str, Any]:
    """One run's line: epochs, seconds since the start and values, where there is a value."""
    clock = accumulate(seconds or 0.0 for seconds in run.values("seconds"))
    rows = zip(run.history, clock, _values(run, key), strict=True)
    points = [
        (row.epoch, _short(seconds), _short(value))
        for row, seconds, value in rows
        if value is not None and math.isfinite(value)
    ]
    return {
        "seed": run.seed,
        "diverged": run.state == "diverged",
        "epoch": [epoch for epoch, _, _ in points],
        "seconds": [seconds for _, seconds, _ in points],
        "y": [value for _, _, value in points],
    }


def _values(run: RunRecord, key: str) -> list[float | None]:
    if key == "alpha":
        return [None if p is None else 1 / (p - 1) for p in run.values("p")]
    return run.values(key)


def _short(value: float | int | None) -> float | int | None:
    """Six digits are more than a chart can show, and keep the page small."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
