"""The page's tables. Those that sort carry the value to sort by in ``data-value``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from lpsgd.lab.analysis.comparison import (
    METRICS,
    Analysis,
    Metric,
    OptimizerResult,
    Versus,
    final_values,
)
from lpsgd.lab.analysis.stats import Summary
from lpsgd.lab.formatting import MISSING, duration, fixed, p_value, percent, plain, size
from lpsgd.lab.report.html import Html, element, join
from lpsgd.lab.report.strip import domain, strip
from lpsgd.lab.report.words import bytes_per_parameter, counts, interval, method
from lpsgd.lab.store.run_record import RunRecord


def _table(name: str, columns: Sequence[tuple[str, str]], rows: Sequence[Html]) -> Html:
    """A table whose columns sort; ``columns`` holds each one's heading and what it means."""
    heads = [
        element(
            "th",
            element(
                "button", heading, type="button", title=f"Sort by this column. {meaning}".strip()
            ),
            scope="col",
            aria_sort="none",
            class_="wide" if "," in heading else None,
        )
        for heading, meaning in columns
    ]
    head = element("thead", element("tr", *heads))
    table = element("table", head, element("tbody", *rows), id=name, class_="sortable")
    return element("div", table, class_="scroll")


def _number(text: str, value: float | None, small: str = "") -> Html:
    """A cell that sorts by ``value``, with a second, smaller line."""
    second = (element("small", small),) if small else ()
    return element("td", text, *second, class_="number", data_value=_sort_key(value))


def _sort_key(value: float | None) -> str | None:
    """What the page's script sorts by; what is missing or not finite has none and comes last."""
    return None if value is None or not math.isfinite(value) else repr(float(value))


def _name(analysis: Analysis, label: str) -> Html:
    place = [result.label for result in analysis.results].index(label)
    tag = (" ", element("span", "reference", class_="tag")) if label == analysis.reference else ()
    swatch = element("span", class_="swatch", data_series=place)
    return element("th", swatch, label, *tag, scope="row", data_series=place)


def results(analysis: Analysis) -> Html:
    """Final and best numbers of every optimizer, with each seed drawn."""
    scales = {
        metric.key: domain(
            value
            for result in analysis.results
            for value in (*_seeds(result, metric), *_ends(result.final[metric.key]))
        )
        for metric in METRICS
    }
    rows: list[Html] = []
    for result in analysis.results:
        cells = [_name(analysis, result.label), _number(counts(result), result.complete)]
        for metric in METRICS:
            final = result.final[metric.key]
            spread = "" if final.sd is None else f"sd {fixed(final.sd, metric.digits)}"
            cells.append(_number(fixed(final.mean, metric.digits), final.mean, spread))
            cells.append(_spread(result, metric, scales[metric.key]))
        cells += [_number(*_best(result, metric)) for metric in METRICS]
        rows.append(element("tr", *cells))
    return _table("results", _result_columns(), rows)


def _result_columns() -> list[tuple[str, str]]:
    columns = [("Optimizer", ""), ("Seeds", "Complete runs, which the numbers are of.")]
    for metric in METRICS:
        columns.append(
            (f"{metric.heading} ({metric.unit})", "Mean and standard deviation, last epoch.")
        )
        columns.append(("95 % interval", "Bar: 95 % interval of the mean. Dots: seeds."))
    columns += [
        (f"Best {metric.title}, chosen on test", "Mean of each run's best epoch; optimistic.")
        for metric in METRICS
    ]
    return columns


def _spread(result: OptimizerResult, metric: Metric, scale: tuple[float, float]) -> Html:
    final = result.final[metric.key]
    text = interval(final.low, final.high, metric.digits)
    values = _seeds(result, metric)
    listed = ", ".join(fixed(value, metric.digits) for value in values)
    drawing = strip(
        scale,
        title=f"95 % interval {text}; seeds {listed}",
        dots=values,
        interval=_ends(final),
        mark=final.mean,
    )
    return _drawing(drawing if values else Html(""), final.low, text)


def _drawing(drawing: Html, low: float | None, text: str) -> Html:
    """A cell with a strip, and below it the interval that sorts the column."""
    below = () if low is None else (element("small", text),)
    return element("td", drawing, *below, class_="drawing", data_value=_sort_key(low))


def _best(result: OptimizerResult, metric: Metric) -> tuple[str, float | None, str]:
    best = result.best[metric.key]
    spread = "" if best.sd is None else f"sd {fixed(best.sd, metric.digits)}"
    return fixed(best.mean, metric.digits), best.mean, spread


def _seeds(result: OptimizerResult, metric: Metric) -> list[float]:
    return list(final_values(metric, result.runs).values())


def _ends(of: Summary | Versus) -> tuple[float | None, float | None]:
    return of.low, of.high


def tests(analysis: Analysis) -> Html:
    """The section with the tests against the reference; empty for a single optimizer."""
    others = [result for result in analysis.results if result.versus]
    if not others:
        return Html("")
    heading = element("h2", f"Against {analysis.reference}")
    tables = []
    for metric in METRICS:
        made = [(result.label, result.versus[metric.key]) for result in others]
        ends = [end for _, test in made for end in (0.0, test.difference, *_ends(test))]
        rows = [
            element("tr", *_test_cells(analysis, metric, label, test, domain(ends)))
            for label, test in made
        ]
        columns = [
            (f"{metric.heading} ({metric.difference_unit})", ""),
            ("Difference", f"Mean of optimizer minus {analysis.reference}, seed by seed."),
            ("95 % interval", "Of the difference; the line is zero."),
            ("p (Holm)", "Two-sided paired t-test, after Holm's correction."),
            ("Detectable", "The smallest true difference that this many seeds would find."),
            ("Verdict", ""),
        ]
        tables.append(_table(f"tests-{metric.key}", columns, rows))
    note = element("p", method(analysis), class_="note")
    return element("section", heading, *tables, note)


def _test_cells(
    analysis: Analysis, metric: Metric, label: str, test: Versus, scale: tuple[float, float]
) -> list[Html]:
    text = interval(test.low, test.high, metric.digits)
    drawing = strip(
        scale, title=f"95 % interval {text}", interval=_ends(test), mark=test.difference, zero=True
    )
    kind = test.verdict if test.verdict in ("better", "worse") else "open"
    return [
        _name(analysis, label),
        _number(
            fixed(test.difference, metric.digits, signed=True),
            test.difference,
            f"{test.n} seed{'' if test.n == 1 else 's'}",
        ),
        _drawing(drawing, test.low, text),
        _number(p_value(test.p_holm), test.p_holm),
        _number(fixed(test.smallest_detectable, metric.digits), test.smallest_detectable),
        element("td", element("span", test.verdict, class_=f"verdict {kind}")),
    ]


def costs(analysis: Analysis) -> Html:
    """Time and memory of every optimizer."""
    rows = [
        element(
            "tr",
            _name(analysis, result.label),
            _number(duration(result.step_seconds), result.step_seconds),
            _number(percent(result.optimizer_share), result.optimizer_share),
            _number(size(result.state_bytes), result.state_bytes),
            _number(bytes_per_parameter(result), result.bytes_per_parameter),
        )
        for result in analysis.results
    ]
    columns = [
        ("Optimizer", ""),
        ("Time per step", "Of the median epoch after the first, mean over seeds."),
        ("In the optimizer", "Share of the training time spent inside the optimizer."),
        ("Optimizer state", "Memory that the optimizer keeps between steps."),
        ("State per parameter", ""),
    ]
    return _table("costs", columns, rows)


def settings(analysis: Analysis) -> Html:
    """The settings of every optimizer side by side."""
    keys = dict.fromkeys(key for result in analysis.results for key in result.settings)
    rows = []
    for result in analysis.results:
        cells = [
            element("td", plain(result.settings[key]) if key in result.settings else MISSING)
            for key in keys
        ]
        name = _name(analysis, result.label)
        rows.append(element("tr", name, element("td", result.optimizer), *cells))
    columns = [("Optimizer", ""), ("Rule", ""), *((str(key), "") for key in keys)]
    return _table("settings", columns, rows)


def runs(analysis: Analysis) -> Html:
    """Every run, and what its folder says of its settings and environment."""
    rows = []
    for run in analysis.runs:
        seconds = sum(value or 0.0 for value in run.values("seconds")) or None
        rows.append(
            element(
                "tr",
                _name(analysis, run.label),
                _number(str(run.seed), run.seed),
                element("td", element("span", run.state, class_=f"state {run.state.split()[0]}")),
                _number(str(len(run.history)), len(run.history)),
                *(_number(fixed(run.last(m.key), m.digits), run.last(m.key)) for m in METRICS),
                _number(duration(seconds), seconds),
                element("td", run.folder or MISSING, class_="path"),
            )
        )
    columns = [("Optimizer", ""), ("Seed", ""), ("State", ""), ("Epochs", "")]
    columns += [(f"{m.heading} ({m.unit})", "Last epoch.") for m in METRICS]
    columns += [("Time", "Training time of all epochs."), ("Folder", "")]
    details = (_run_details(run) for run in analysis.runs)
    every = element("summary", "Settings and environment of every run")
    return join(_table("run-list", columns, rows), element("details", every, *details, id="every"))


def _run_details(run: RunRecord) -> Html:
    """Everything that the run's folder says of its settings and its environment."""
    state = f"{run.state}: {run.reason}" if run.reason else run.state
    return element(
        "details",
        element("summary", f"{run.label}, seed {run.seed} ({state})"),
        element(
            "div",
            _pairs("Settings", run.config),
            _pairs("Environment", run.environment),
            _pairs("Result", run.result),
            class_="columns",
        ),
    )


def _pairs(heading: str, values: BaseModel | None) -> Html:
    flat = _flatten({} if values is None else values.model_dump(exclude_unset=True))
    rows = (element("tr", element("th", key), element("td", text)) for key, text in flat)
    body = element("table", *rows, class_="pairs") if flat else element("p", "Not recorded.")
    return element("div", element("h4", heading), body)


def _flatten(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested values as ``("optimizer.settings.lr", "0.1")``."""
    if isinstance(value, Mapping) and value:
        return [
            pair
            for key, item in value.items()
            for pair in _flatten(item, f"{name}.{key}" if name else str(key))
        ]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [pair for k, item in enumerate(value) for pair in _flatten(item, f"{name}.{k}")]
    if not name:
        return []
    return [(name, ", ".join(map(plain, value)) if isinstance(value, list) else plain(value))]
