"""From the runs of a comparison to its results: frozen dataclasses that can go to JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lpsgd.lab.analysis import stats
from lpsgd.lab.analysis.curves import final_values
from lpsgd.lab.analysis.verdict import Verdict, decide, headline, sentence, with_note
from lpsgd.lab.errors import UserError
from lpsgd.lab.formatting import fixed
from lpsgd.lab.store.disk.jsonio import encode
from lpsgd.lab.store.run_record import Comparison, RunRecord


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

    def with_unit(self, text: str, unit: str | None = None) -> str:
        """``text`` and in parentheses the unit, or another one, if there is one."""
        unit = self.unit if unit is None else unit
        return f"{text} ({unit})" if unit else text

    def best(self, values: Iterable[float]) -> float:
        """The best of some values."""
        return max(values) if self.higher_is_better else min(values)

    def value(self, value: float | None) -> str:
        """A value of this metric with its unit."""
        return f"{fixed(value, self.digits)} {self.unit}".rstrip()

    def amount(self, value: float | None, *, signed: bool = False) -> str:
        """A difference of two values with its unit."""
        return f"{fixed(value, self.digits, signed=signed)} {self.difference_unit}".rstrip()


# The first is the one that the headline speaks of.
LABORATORY_METRICS = (
    Metric("test_top1", "test accuracy", "%", "points", 2, higher_is_better=True),
    Metric("test_nll", "test NLL", "nats", "nats", 4, higher_is_better=False),
)


def compared_metrics(runs: Sequence[RunRecord]) -> tuple[Metric, ...]:
    """What runs are compared by: the user's own metrics, else accuracy and NLL."""
    for run in runs:
        note = run.setting("problem")
        if isinstance(note, Mapping) and note.get("metrics"):
            return tuple(_own_metric(name, way, runs) for name, way in note["metrics"].items())
    return LABORATORY_METRICS


def _own_metric(name: str, direction: str, runs: Sequence[RunRecord]) -> Metric:
    """A metric of the user's, with as many decimals as show four digits of its largest value."""
    key = f"test_{name}"
    largest = max((abs(x) for x in _finite(run.last(key) for run in runs)), default=0.0)
    digits = 3 - math.floor(math.log10(largest)) if largest else 2
    title = f"test {name.replace('_', ' ')}"
    return Metric(key, title, "", "", max(0, min(8, digits)), higher_is_better=direction == "max")


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
    search_note: str
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
    metrics: tuple[Metric, ...]
    results: tuple[OptimizerResult, ...]
    runs: tuple[RunRecord, ...]
    verdict: tuple[str, ...]
    details: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A value for ``json.dumps``: strict (no NaN), without the histories of the runs."""
        fields = {
            "version": 1,
            **vars(self),
            "metrics": [asdict(metric) for metric in self.metrics],
            "primary": self.metrics[0].key,
            "optimizers": [_result_json(result) for result in self.results],
            "runs": [_run_json(run, self.metrics) for run in self.runs],
        }
        del fields["results"]
        return dict(encode(fields))


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
    notes = comparison.search_notes
    metrics = compared_metrics(comparison.runs)
    tests = {m.key: _tests(m, reference, by_label, notes) for m in metrics}
    results = tuple(
        _result(
            label,
            runs,
            {key: of[label] for key, of in tests.items() if label in of},
            notes.get(label, ""),
            metrics,
        )
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
        metrics=metrics,
        results=results,
        runs=comparison.runs,
        verdict=tuple(headline(metrics[0], reference, results)),
        details=tuple(v.text for m in metrics for v in tests[m.key].values()),
        notes=(*comparison.notes, *filter(None, map(_missing_note, comparison.runs))),
    )


def _tests(
    metric: Metric,
    reference: str,
    by_label: Mapping[str, Sequence[RunRecord]],
    notes: Mapping[str, str],
) -> dict[str, Versus]:
    """The paired test of each other optimizer on ``metric``, corrected over all of them."""
    values = {label: final_values(runs, metric.key) for label, runs in by_label.items()}
    base = values.pop(reference)
    pairs = {
        label: [(mine[seed], base[seed]) for seed in sorted(mine.keys() & base.keys())]
        for label, mine in values.items()
    }
    tests = [stats.paired([a for a, _ in some], [b for _, b in some]) for some in pairs.values()]
    alpha = stats.ALPHA / max(1, sum(test.p is not None for test in tests))
    corrected = stats.holm([test.p for test in tests])
    made = {}
    for label, test, p_holm in zip(pairs, tests, corrected, strict=True):
        versus = Versus(
            **vars(test),
            p_holm=p_holm,
            alpha=alpha,
            smallest_detectable=(
                None if test.sd is None else stats.smallest_detectable(test.sd, test.n, alpha)
            ),
            verdict=decide(test, p_holm, higher_is_better=metric.higher_is_better),
        )
        who, whom = (with_note(name, notes.get(name, "")) for name in (label, reference))
        made[label] = replace(versus, text=sentence(who, whom, metric, versus))
    return made


def _result(
    label: str,
    runs: tuple[RunRecord, ...],
    versus: Mapping[str, Versus],
    search_note: str,
    metrics: Sequence[Metric],
) -> OptimizerResult:
    states = [run.state for run in runs]
    measured = [run for run in runs if run.config] or list(runs)
    return OptimizerResult(
        label=label,
        search_note=search_note,
        optimizer=measured[0].optimizer if measured else label,
        settings=measured[0].settings if measured else {},
        runs=runs,
        complete=states.count("complete"),
        diverged=states.count("diverged"),
        unfinished=states.count("incomplete") + states.count("not started"),
        final={m.key: stats.summarise(final_values(runs, m.key).values()) for m in metrics},
        best={m.key: stats.summarise(_bests(m, runs)) for m in metrics},
        versus=versus,
        step_seconds=_mean(map(_step_seconds, runs)),
        optimizer_share=_mean(map(_optimizer_share, runs)),
        state_bytes=_largest(runs, "state_bytes"),
        parameters=_largest(runs, "parameters"),
    )


def _bests(metric: Metric, runs: Sequence[RunRecord]) -> list[float]:
    histories = [_finite(run.values(metric.key)) for run in runs if run.state == "complete"]
    return [metric.best(values) for values in histories if values]


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


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _finite(values)
    return statistics.fmean(known) if known else None


def _largest(runs: Sequence[RunRecord], key: str) -> int | None:
    sizes = (getattr(run.result, key, None) for run in runs)
    return max((size for size in sizes if size is not None), default=None)


def _common(runs: Sequence[RunRecord], key: str) -> Any:
    """A field of the recipe if all runs agree on it."""
    values = {str(run.setting(key)): run.setting(key) for run in runs if run.config}
    return next(iter(values.values())) if len(values) == 1 else None


def _missing_note(run: RunRecord) -> str | None:
    """Why a run is not in the numbers."""
    name = f"{run.label}, seed {run.seed}"
    if run.state == "diverged":
        return f"Diverged: {name}{f' ({run.reason})' if run.reason else ''}."
    if run.state == "incomplete":
        where = run.reason or f"epoch {len(run.history)} of {run.setting('epochs')}"
        return f"Not finished: {name} ({where})."
    return f"Not started: {name}." if run.state == "not started" else None


def _result_json(result: OptimizerResult) -> dict[str, Any]:
    fields = {key: value for key, value in vars(result).items() if key != "runs"}
    for group in ("final", "best", "versus"):
        fields[group] = {key: asdict(value) for key, value in fields[group].items()}
    return {**fields, "best_note": "best epoch of each run, chosen on the test set"}


def _run_json(run: RunRecord, metrics: Sequence[Metric]) -> dict[str, Any]:
    fields = {key: getattr(run, key) for key in ("label", "seed", "folder", "state", "reason")}
    final = {metric.key: run.last(metric.key) for metric in metrics}
    return {**fields, "epochs": len(run.history), "final": final}
