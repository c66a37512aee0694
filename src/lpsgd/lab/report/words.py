"""The words and short texts that the terminal's table and the page share."""

from __future__ import annotations

from lpsgd.lab.analysis.comparison import Analysis, OptimizerResult
from lpsgd.lab.analysis.stats import ALPHA, POWER
from lpsgd.lab.formatting import MISSING, fixed
from lpsgd.lab.recipe import OWN_DATA


def title(analysis: Analysis) -> str:
    """What was trained on what."""
    data = "own data" if analysis.dataset == OWN_DATA else analysis.dataset
    named = [str(part) for part in (analysis.model, data) if part]
    return " on ".join(named) or analysis.folder


def subtitle(analysis: Analysis) -> str:
    """How much was compared."""
    parts = [_count(len(analysis.results), "optimizer"), _count(len(analysis.seeds), "seed")]
    if analysis.epochs is not None:
        parts.append(_count(analysis.epochs, "epoch"))
    return ", ".join(parts)


def method(analysis: Analysis) -> str:
    """How the tests were made, with the level after correction."""
    tests = {
        metric: [r.versus[metric.key] for r in analysis.results if r.versus]
        for metric in analysis.metrics
    }
    made = {metric: sum(test.p is not None for test in group) for metric, group in tests.items()}
    if not any(made.values()):
        return "No paired t-test: it needs at least two shared seeds, and values that differ."
    levels = "; ".join(
        f"{metric.title} {ALPHA}/{count} = {ALPHA / count:.3g}"
        for metric, count in made.items()
        if count
    )
    return (
        f"Paired t-test against {analysis.reference} over shared seeds; p after Holm's correction "
        "over the tests of each metric. Detectable: the smallest true difference that would be "
        f"found with {round(100 * POWER)} % power at the corrected level ({levels})."
    )


def counts(result: OptimizerResult) -> str:
    """How many runs the numbers rest on, and what became of the others."""
    parts = [str(result.complete)]
    if result.diverged:
        parts.append(f"{result.diverged} diverged")
    if result.unfinished:
        parts.append(f"{result.unfinished} unfinished")
    return ", ".join(parts)


def interval(low: float | None, high: float | None, digits: int) -> str:
    """An interval as ``low to high``."""
    if low is None or high is None:
        return MISSING
    return f"{fixed(low, digits)} to {fixed(high, digits)}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
