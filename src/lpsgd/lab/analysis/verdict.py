"""What the statistics say, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lpsgd.lab.analysis.stats import ALPHA, ENOUGH_SEEDS, POWER, Paired
from lpsgd.lab.formatting import best_marks, fixed, p_value

if TYPE_CHECKING:
    from lpsgd.lab.analysis.comparison import Metric, OptimizerResult, Versus

Verdict = Literal[
    "better",
    "worse",
    "inconclusive",
    "identical",
    "no spread",
    "too few seeds",
    "no pairs",
]


def decide(test: Paired, p_holm: float | None, *, higher_is_better: bool) -> Verdict:
    """The verdict on one paired test; below ``ENOUGH_SEEDS`` pairs it is never a finding."""
    if test.n == 0 or test.difference is None:
        return "no pairs"
    if test.n < ENOUGH_SEEDS:
        return "too few seeds"
    if p_holm is None:
        return "no spread"
    if test.sd == 0:
        return "identical"
    if p_holm >= ALPHA:
        return "inconclusive"
    return "better" if (test.difference > 0) == higher_is_better else "worse"


def sentence(label: str, reference: str, metric: Metric, versus: Versus) -> str:
    """One comparison in one sentence, with the numbers that it rests on."""
    on, seeds = f"on {metric.title}", f"{versus.n} seed{'s' if versus.n != 1 else ''}"
    difference, evidence = metric.amount(versus.difference, signed=True), _evidence(metric, versus)
    amount = metric.amount(abs(versus.difference or 0.0))
    found = f"{label} is {versus.verdict} than {reference} {on} by {amount}{evidence}."
    texts: dict[Verdict, str] = {
        "better": found,
        "worse": found,
        "inconclusive": f"No difference shown between {label} and {reference} {on}: "
        f"{difference}{evidence}.",
        "identical": f"{label} and {reference} are identical {on} in each of {seeds}.",
        "no spread": f"{label} differs from {reference} {on} by {difference} in each of {seeds}: "
        "without spread there is no t-test.",
        "too few seeds": f"{label} against {reference} {on}: too few seeds ({versus.n} of the "
        f"{ENOUGH_SEEDS} needed for a verdict); difference {difference}{evidence}.",
        "no pairs": f"{label} and {reference} share no seed with a finished run: "
        f"no comparison {on}.",
    }
    return texts[versus.verdict]


def _evidence(metric: Metric, versus: Versus) -> str:
    """The interval, the p value and what could have been seen."""
    if versus.low is None or versus.high is None:
        return ""
    low, high = (fixed(x, metric.digits, signed=True) for x in (versus.low, versus.high))
    p = f"p = {p_value(versus.p_holm)}".replace("= <", "< ")
    text = f" (95 % interval {low} to {high} from {versus.n} seeds; {p} after Holm)"
    if versus.verdict in ("inconclusive", "too few seeds"):
        text += (
            f". A true difference of {metric.amount(versus.smallest_detectable)} or more "
            f"would have been found with {round(100 * POWER)} % probability"
        )
    return text


def headline(metric: Metric, reference: str, results: Sequence[OptimizerResult]) -> list[str]:
    """The sentences that stand at the top: what is shown on the primary metric, and who leads."""
    others = [result for result in results if result.label != reference]
    noted = {result.label: with_note(result.label, result.search_note) for result in results}
    reference = noted.get(reference, reference)
    only = f"Only one optimizer ({reference}): there is nothing to compare it with."
    return [
        *(_findings(metric, reference, others) if others else [only]),
        *_leader(metric, results),
        *(_divergence(result) for result in results if result.diverged),
    ]


def _divergence(result: OptimizerResult) -> str:
    count = len(result.runs)
    if result.diverged == count:
        every = "The only run" if count == 1 else f"All {count} runs"
        return f"{every} of {result.label} diverged: it has no result."
    return (
        f"{result.diverged} of {count} runs of {result.label} diverged; "
        "its numbers are from the others only."
    )


def _findings(metric: Metric, reference: str, others: Sequence[OptimizerResult]) -> list[str]:
    """One line for each kind of verdict, naming the optimizers that it holds for."""
    by_verdict: dict[Verdict, list[OptimizerResult]] = {}
    for result in others:
        by_verdict.setdefault(result.versus[metric.key].verdict, []).append(result)
    few = by_verdict.pop("too few seeds", [])
    words: dict[Verdict, str] = {
        "better": f"Better than {reference} on {metric.title}",
        "worse": f"Worse than {reference} on {metric.title}",
        "inconclusive": f"No difference from {reference} shown on {metric.title}",
        "identical": f"Identical to {reference} on {metric.title}",
        "no spread": f"The same difference from {reference} in every seed, so no t-test",
        "no pairs": f"No finished seed shared with {reference}",
    }
    lines = [f"{words[v]}: {_labels(by_verdict[v])}." for v in words if v in by_verdict]
    if few:
        pairs = sorted({result.versus[metric.key].n for result in few})
        counts = " to ".join(str(count) for count in dict.fromkeys((pairs[0], pairs[-1])))
        who = "" if len(few) == len(others) else f" on {_labels(few)}"
        lines.append(
            f"Too few seeds for a verdict{who}: {counts}; at least {ENOUGH_SEEDS} are needed."
        )
    return lines


def _labels(results: Sequence[OptimizerResult]) -> str:
    return ", ".join(with_note(result.label, result.search_note) for result in results)


def with_note(label: str, search_note: str) -> str:
    """The label with what is to be known of its search, in the sentence that judges it."""
    return f"{label} ({search_note})" if search_note else label


def _leader(metric: Metric, results: Sequence[OptimizerResult]) -> list[str]:
    """Who has the best mean; a description, not a finding."""
    best = [result for result in results if result.label in leaders(metric, results)]
    if not best:
        return []
    extreme = "Highest" if metric.higher_is_better else "Lowest"
    value = metric.value(best[0].final[metric.key].mean)
    return [f"{extreme} mean {metric.title}: {_labels(best)} ({value})."]


def leaders(metric: Metric, results: Sequence[OptimizerResult]) -> list[str]:
    """The labels with the best mean as it is printed; none if there is nothing to compare."""
    means = [result.final[metric.key].mean for result in results]
    marks = best_marks(means, metric.digits, higher_is_better=metric.higher_is_better)
    return [result.label for result, best in zip(results, marks, strict=True) if best]
