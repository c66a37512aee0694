"""From the runs of a comparison to its results: frozen dataclasses that can go to JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lpsgd.lab.analysis import stats
from lpsgd.lab.analysis.verdict import Verdict, decide, headline, sentence
from lpsgd.lab.errors import UserError
from lpsgd.lab.formatting import fixed
from lpsgd.lab.store.jsonio import encode
from lpsgd.lab.store.run_record import Comparison, RunRecord, load_comparison

__all__ = [
    "METRICS",
    "Analysis",
    "Metric",
    "OptimizerResult",
    "Versus",
    "analyse",
    "final_values",
    "load_comparison",
]


@dataclass(frozen=True)
class Metric:
    """A number that optimizers are compared by."""

    key: str
    title: str
    unit: str
    difference_unit: str
    digits: int
    higher_is_better: bool

    @property
    def heading(self) -> str:
        """The title as it begins a line."""
        return self.title[0].upper() + self.title[1:]

    def value(self, value: float | None) -> str:
        """A value of this metric with its unit."""
        return f"{fixed(value, self.digits)} {self.unit}"

    def amount(self, value: float | None, *, signed: bool = False) -> str:
        """A difference of two values with its unit."""
        return f"{fixed(value, self.digits, signed=signed)} {self.difference_unit}"


# The first is the one that the headline speaks of.
METRICS = (
    Metric("test_top1", "test accuracy", "%", "points", 2, higher_is_better=True),
    Metric("test_nll", "test NLL", "nats", "nats", 4, higher_is_better=False),
)


@dataclass(frozen=True)
class Versus(stats.Paired):
    """An optimizer against the reference on one metric: the paired test and what it means.

    ``n`` is the number of shared seeds. ``alpha`` is the level after correction at which
    ``smallest_detectable`` is computed: 0.05 over the number of tests of this metric, Holm's
    strictest step.
    """

    p_holm: float | None
    alpha: float
    smallest_detectable: float | None
    verdict: Verdict
    text: str = ""


@dataclass(frozen=True)
class OptimizerResult:
    """Everything about one optimizer of the comparison.

    ``final`` is over the last epoch of the complete runs. ``best`` takes each run's best epoch,
    which is chosen on the test set and so is optimistic; it is never tested.
    """

    label: str
    optimizer: str
    settings: Mapping[str, Any]
    runs: tuple[RunRecord, ...]
    complete: int
    diverged: int
    unfinished: int
    final: Mapping[str, stats.Summary]
    best: Mapping[str, stats.Summary]
    versus: Mapping[str, Versus]
    step_seconds: float | None
    optimizer_share: float | None
    state_bytes: int | None
    parameters: int | None

    @property
    def bytes_per_parameter(self) -> float | None:
        """Bytes of optimizer state for each parameter of the model."""
        if self.state_bytes is None or not self.parameters:
            return None
        return self.state_bytes / self.parameters


@dataclass(frozen=True)
class Analysis:
    """A comparison, analysed. ``verdict`` holds sentences, the most important first."""

    folder: str
    command: str | None
    dataset: str | None
    model: str | None
    epochs: int | None
    seeds: tuple[int, ...]
    reference: str
    results: tuple[OptimizerResult, ...]
    runs: tuple[RunRecord, ...]
    verdict: tuple[str, ...]
    details: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A value for ``json.dumps``: strict (no NaN), without the histories of the runs."""
        return {
            "version": 1,
            "folder": self.folder,
            "command": self.command,
            "dataset": self.dataset,
            "model": self.model,
            "epochs": self.epochs,
            "seeds": list(self.seeds),
            "reference": self.reference,
            "primary": METRICS[0].key,
            "verdict": list(self.verdict),
            "details": list(self.details),
            "notes": list(self.notes),
            "optimizers": [_result_json(result) for result in self.results],
            "runs": [_run_json(run) for run in self.runs],
        }


def analyse(comparison: Comparison, reference: str | None = None) -> Analysis:
    """Summarise every optimizer and test it against ``reference`` (default: the comparison's)."""
    reference = reference or comparison.reference
    if reference not in comparison.labels:
        raise UserError(
            f"reference {reference!r} is not in the comparison; "
            f"choose one of {', '.join(comparison.labels)}"
        )
    by_label = {
        label: tuple(run for run in comparison.runs if run.label == label)
        for label in comparison.labels
    }
    tests = {metric.key: _tests(metric, reference, by_label) for metric in METRICS}
    results = tuple(
        _result(label, runs, {key: of[label] for key, of in tests.items() if label in of})
        for label, runs in by_label.items()
    )
    epochs = _common(comparison.runs, "epochs")
    return Analysis(
        folder=comparison.folder,
        command=comparison.command,
        dataset=_common(comparison.runs, "dataset"),
        model=_common(comparison.runs, "model"),
        epochs=None if epochs is None else int(epochs),
        seeds=comparison.seeds,
        reference=reference,
        results=results,
        runs=comparison.runs,
        verdict=tuple(headline(METRICS[0], reference, results)),
        details=tuple(v.text for m in METRICS for v in tests[m.key].values()),
        notes=(*comparison.notes, *_unfinished(comparison.runs)),
    )


def _tests(
    metric: Metric, reference: str, by_label: Mapping[str, Sequence[RunRecord]]
) -> dict[str, Versus]:
    """The paired test of each other optimizer on ``metric``, corrected over all of them."""
    base = final_values(metric, by_label[reference])
    made: dict[str, stats.Paired] = {}
    for label, runs in by_label.items():
        if label == reference:
            continue
        mine = final_values(metric, runs)
        shared = sorted(mine.keys() & base.keys())
        made[label] = stats.paired([mine[s] for s in shared], [base[s] for s in shared])
    corrected = stats.holm([test.p for test in made.values()])
    alpha = stats.ALPHA / max(1, sum(test.p is not None for test in made.values()))
    return {
        label: _versus(metric, label, reference, test, p_holm, alpha)
        for (label, test), p_holm in zip(made.items(), corrected, strict=True)
    }


def _versus(
    metric: Metric,
    label: str,
    reference: str,
    test: stats.Paired,
    p_holm: float | None,
    alpha: float,
) -> Versus:
    versus = Versus(
        **vars(test),
        p_holm=p_holm,
        alpha=alpha,
        smallest_detectable=(
            None if test.sd is None else stats.smallest_detectable(test.sd, test.n, alpha)
        ),
        verdict=decide(test, p_holm, higher_is_better=metric.higher_is_better),
    )
    return replace(versus, text=sentence(label, reference, metric, versus))


def _result(
    label: str, runs: tuple[RunRecord, ...], versus: Mapping[str, Versus]
) -> OptimizerResult:
    states = [run.state for run in runs]
    measured = [run for run in runs if run.config] or list(runs)
    return OptimizerResult(
        label=label,
        optimizer=measured[0].optimizer if measured else label,
        settings=measured[0].settings if measured else {},
        runs=runs,
        complete=states.count("complete"),
        diverged=states.count("diverged"),
        unfinished=states.count("incomplete") + states.count("not started"),
        final={m.key: stats.summarise(list(final_values(m, runs).values())) for m in METRICS},
        best={m.key: stats.summarise(_bests(m, runs)) for m in METRICS},
        versus=versus,
        step_seconds=_mean(map(_step_seconds, runs)),
        optimizer_share=_mean(map(_optimizer_share, runs)),
        state_bytes=_largest(run.result.state_bytes for run in runs if run.result),
        parameters=_largest(run.result.parameters for run in runs if run.result),
    )


def final_values(metric: Metric, runs: Sequence[RunRecord]) -> dict[int, float]:
    """The last epoch's value of every complete run, by seed."""
    values = {run.seed: run.last(metric.key) for run in runs if run.state == "complete"}
    return {seed: v for seed, v in values.items() if v is not None and math.isfinite(v)}


def _bests(metric: Metric, runs: Sequence[RunRecord]) -> list[float]:
    best: Callable[[list[float]], float] = max if metric.higher_is_better else min
    histories = [_finite(run.values(metric.key)) for run in runs if run.state == "complete"]
    return [best(values) for values in histories if values]


def _step_seconds(run: RunRecord) -> float | None:
    """Seconds of an optimizer step: the median epoch, without the first, which warms up."""
    pairs = zip(run.values("seconds"), run.values("steps"), strict=True)
    each = [seconds / steps for seconds, steps in pairs if seconds is not None and steps]
    return statistics.median(each[1:] or each) if each else None


def _optimizer_share(run: RunRecord) -> float | None:
    """Time inside the optimizer over all training time."""
    total = sum(_finite(run.values("seconds")))
    inside = _finite(run.values("optimizer_seconds"))
    return sum(inside) / total if inside and total > 0 else None


def _finite(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Any) -> float | None:
    known = _finite(list(values))
    return statistics.fmean(known) if known else None


def _largest(values: Any) -> int | None:
    known = [int(x) for x in values if isinstance(x, (int, float)) and math.isfinite(x)]
    return max(known) if known else None


def _common(runs: Sequence[RunRecord], key: str) -> Any:
    """A field of the recipe if all runs agree on it."""
    values = {str(run.setting(key)): run.setting(key) for run in runs if run.config}
    return next(iter(values.values())) if len(values) == 1 else None


def _unfinished(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """What is not in the numbers, and why."""
    notes = []
    for run in runs:
        name = f"{run.label}, seed {run.seed}"
        if run.state == "diverged":
            notes.append(f"Diverged: {name}" + (f" ({run.reason})" if run.reason else "") + ".")
        elif run.state == "incomplete":
            epochs = run.setting("epochs")
            where = run.reason or f"epoch {len(run.history)} of {epochs}"
            notes.append(f"Not finished: {name} ({where}).")
        elif run.state == "not started":
            notes.append(f"Not started: {name}.")
    return tuple(notes)


def _result_json(result: OptimizerResult) -> dict[str, Any]:
    fields = {key: value for key, value in vars(result).items() if key != "runs"}
    for group in ("final", "best", "versus"):
        fields[group] = {key: asdict(value) for key, value in fields[group].items()}
    fields["best_note"] = "best epoch of each run, chosen on the test set"
    return dict(encode(fields))


def _run_json(run: RunRecord) -> dict[str, Any]:
    return dict(
        encode(
            {
                "label": run.label,
                "seed": run.seed,
                "folder": run.folder,
                "state": run.state,
                "reason": run.reason,
                "epochs": len(run.history),
                "final": {metric.key: run.last(metric.key) for metric in METRICS},
            }
        )
    )
