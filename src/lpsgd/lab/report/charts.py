"""The learning curves as the data that the page's script draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lpsgd.lab.analysis.comparison import LABORATORY_METRICS, Analysis, OptimizerResult
from lpsgd.lab.analysis.curves import Point, learning_curve


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
    Chart("images_per_second", "Training speed", "examples per second", "inside", 0),
)


_LARGE_P = 50


def _own_charts(analysis: Analysis) -> Iterator[Chart]:
    """Charts of the user's own metrics, and of the loss that is trained."""
    own = [metric for metric in analysis.metrics if metric not in LABORATORY_METRICS]
    for split, title in (("test", "Test"), ("train", "Training"), ("val", "Validation")):
        for metric in own:
            name = metric.key.removeprefix("test_")
            shown = name.replace("_", " ")
            log = (split, name) == ("train", "loss")
            yield Chart(
                f"{split}_{name}", f"{title} {shown}", shown, "curves", metric.digits, log=log
            )


def chart_data(analysis: Analysis) -> dict[str, Any]:
    """What the page's script draws: charts that have data, and the lines of every optimizer."""
    largest_p = max((p or 0.0 for run in analysis.runs for p in run.values("p")), default=0.0)
    # Large and infinite p would leave no room for the others on an axis of p itself.
    unused = "p" if largest_p > _LARGE_P else "alpha"
    charts = [chart for chart in (*_own_charts(analysis), *CHARTS) if chart.key != unused]
    optimizers = [_optimizer(result, charts) for result in analysis.results]
    drawn = [chart for chart in charts if any(chart.key in o["lines"] for o in optimizers)]
    return {"charts": [asdict(chart) for chart in drawn], "optimizers": optimizers}


def _optimizer(result: OptimizerResult, charts: Sequence[Chart]) -> dict[str, Any]:
    lines = {}
    for chart in charts:
        curve = learning_curve(result.runs, chart.key)
        if curve.runs:
            mean = {name: tuple(getattr(p, name) for p in curve.points) for name in Point._fields}
            seeds = [_short(asdict(run)) for run in curve.runs]
            lines[chart.key] = {**_short(mean), "seeds": seeds}
    return {"label": result.label, "lines": lines}


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    """Six digits are more than a chart can show; what is not finite has no place in one."""
    return {
        name: [_shown(x) if isinstance(x, float) else x for x in value]
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }


def _shown(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
