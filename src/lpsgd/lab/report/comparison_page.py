"""The analysis of a comparison as one HTML page that needs no server, network or other file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lpsgd.lab.analysis.comparison import Analysis
from lpsgd.lab.analysis.curves import final_values
from lpsgd.lab.analysis.verdict import leaders
from lpsgd.lab.formatting import setting_text
from lpsgd.lab.labels import pieces
from lpsgd.lab.report.charts import chart_data
from lpsgd.lab.report.template import render_page
from lpsgd.lab.report.words import counts, interval, method, subtitle, title
from lpsgd.lab.store.disk.files import write_text


def write_comparison_page(analysis: Analysis, path: Path | str) -> None:
    """Write the page to ``path`` atomically."""
    from plotly.offline import get_plotlyjs

    results = analysis.results
    tested = [result for result in results if result.versus]
    page = render_page(
        "comparison",
        libraries=[get_plotlyjs()],
        title=title(analysis),
        subtitle=subtitle(analysis),
        method=method(analysis),
        analysis=analysis,
        metrics=analysis.metrics,
        tested=tested,
        leaders={metric.key: leaders(metric, results) for metric in analysis.metrics},
        series={result.label: place for place, result in enumerate(results)},
        settings=list(dict.fromkeys(key for result in results for key in result.settings)),
        result_scales={
            m.key: domain(
                value
                for result in results
                for final in [result.final[m.key]]
                for value in (final.low, final.high, *final_values(result.runs, m.key).values())
            )
            for m in analysis.metrics
        },
        test_scales={
            m.key: domain(
                value
                for test in (result.versus[m.key] for result in tested)
                for value in (0.0, test.difference, test.low, test.high)
            )
            for m in analysis.metrics
        },
        charts=chart_data(analysis),
        counts=counts,
        final_values=final_values,
        flatten=flatten,
        interval=interval,
        pieces=pieces,
        sort_value=sort_value,
    )
    write_text(Path(path), page)


def domain(values: Iterable[float | None]) -> tuple[float, float]:
    """The range that holds all known ``values``, never empty.

    >>> domain([1.0, None, 3.0]), domain([2.0])
    ((1.0, 3.0), (1.5, 2.5))
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def sort_value(value: float | None) -> float | None:
    """What the page's script sorts by; what is missing or not finite has none and comes last."""
    return None if value is None or not math.isfinite(value) else float(value)


def flatten(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested values as ``("optimizer.settings.lr", "0.1")``.

    >>> flatten({"a": {"b": 0.5, "c": [1, 2]}, "d": [{"e": None}]})
    [('a.b', '0.5'), ('a.c', '1, 2'), ('d.0.e', 'none')]
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    nested: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping) and (value or not name):
        nested = value.items()
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        nested = enumerate(value)
    else:
        return [
            (
                name,
                ", ".join(map(setting_text, value))
                if isinstance(value, list)
                else setting_text(value),
            )
        ]
    return [
        pair
        for key, item in nested
        for pair in flatten(item, f"{name}.{key}" if name else str(key))
    ]
