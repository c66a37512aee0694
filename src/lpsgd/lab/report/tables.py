"""The tables of a comparison: one of each for terminal, CSV, Markdown and LaTeX."""

from __future__ import annotations

from lpsgd.lab.analysis.comparison import Analysis, Metric, OptimizerResult
from lpsgd.lab.analysis.stats import Summary
from lpsgd.lab.analysis.verdict import leaders
from lpsgd.lab.formatting import duration, fixed, p_value, percent, size
from lpsgd.lab.report.document import Cell, Table, Tone, Value
from lpsgd.lab.report.words import counts, interval

_INTERVAL = "95 % interval"
_BEST_EPOCH = "best epoch*"
_TONES: dict[str, Tone] = {"better": "good", "worse": "bad", "too few seeds": "doubtful"}


def comparison_tables(analysis: Analysis) -> list[Table]:
    """Results, tests against the reference, and costs; the first is of the primary metric."""
    made = [_results(analysis, metric) for metric in analysis.metrics]
    if len(analysis.results) > 1:
        made += [_tests(analysis, metric) for metric in analysis.metrics]
    return [*made, _costs(analysis)]


def _results(analysis: Analysis, metric: Metric) -> Table:
    best_labels = leaders(metric, analysis.results)
    rows: list[tuple[Cell, ...]] = []
    for result in analysis.results:
        final, best = result.final[metric.key], result.best[metric.key]
        mean = fixed(final.mean, metric.digits)
        rows.append(
            (
                _label(result, analysis),
                Value(mean, (final.mean,), "best" if result.label in best_labels else ""),
                Value(fixed(final.sd, metric.digits), (final.sd,)),
                _interval(final.low, final.high, metric),
                Value(
                    counts(result),
                    (result.complete, result.diverged, result.unfinished),
                    "bad" if result.diverged else "",
                ),
                Value(_mean_sd(best, metric.digits), (best.mean, best.sd), "aside"),
            )
        )
    return Table(
        f"results-{metric.key}",
        metric.with_unit(f"Final {metric.title}"),
        ("optimizer", "mean", "sd", _INTERVAL, "seeds", _BEST_EPOCH),
        rows,
        note="bold: the best mean; * mean (sd) of each run's best epoch, chosen on test",
        parts={
            _INTERVAL: ("low", "high"),
            "seeds": ("complete", "diverged", "unfinished"),
            _BEST_EPOCH: ("best epoch mean", "best epoch sd"),
        },
    )


def _tests(analysis: Analysis, metric: Metric) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for result in analysis.results:
        if metric.key not in result.versus:
            continue
        versus, digits = result.versus[metric.key], metric.digits
        rows.append(
            (
                _label(result, analysis),
                Value(fixed(versus.difference, digits, signed=True), (versus.difference,)),
                _interval(versus.low, versus.high, metric),
                Value(p_value(versus.p_holm), (versus.p_holm,)),
                Value(fixed(versus.smallest_detectable, digits), (versus.smallest_detectable,)),
                Value(versus.verdict, (versus.verdict,), _TONES.get(versus.verdict, "")),
            )
        )
    return Table(
        f"tests-{metric.key}",
        metric.with_unit(f"{metric.heading} against {analysis.reference}", metric.difference_unit),
        ("optimizer", "difference", _INTERVAL, "p (Holm)", "detectable", "verdict"),
        rows,
        parts={_INTERVAL: ("low", "high")},
    )


def _costs(analysis: Analysis) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            _label(result, analysis),
            Value(duration(result.step_seconds), (result.step_seconds,)),
            Value(percent(result.optimizer_share), (result.optimizer_share,)),
            Value(size(result.state_bytes), (result.state_bytes,)),
            Value(size(result.bytes_per_parameter), (result.bytes_per_parameter,)),
        )
        for result in analysis.results
    ]
    return Table(
        "cost",
        "Cost",
        ("optimizer", "time per step", "in optimizer", "state", "state per parameter"),
        rows,
        parts={
            "time per step": ("seconds per step",),
            "in optimizer": ("share of time in optimizer",),
            "state": ("bytes of state",),
            "state per parameter": ("bytes of state per parameter",),
        },
    )


def _label(result: OptimizerResult, analysis: Analysis) -> Value:
    return Value(
        result.label, (result.label,), "reference" if result.label == analysis.reference else ""
    )


def _interval(low: float | None, high: float | None, metric: Metric) -> Value:
    return Value(interval(low, high, metric.digits), (low, high))


def _mean_sd(summary: Summary, digits: int) -> str:
    if summary.sd is None:
        return fixed(summary.mean, digits)
    return f"{fixed(summary.mean, digits)} ({fixed(summary.sd, digits)})"
