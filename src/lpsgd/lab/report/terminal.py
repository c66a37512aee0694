"""The analysis in a terminal: narrow tables, each of which fits 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lpsgd.lab.analysis.comparison import Analysis, Metric, OptimizerResult
from lpsgd.lab.analysis.stats import Summary
from lpsgd.lab.analysis.verdict import leaders
from lpsgd.lab.formatting import duration, fixed, p_value, percent, size
from lpsgd.lab.labels import FoldedLabel
from lpsgd.lab.report.words import counts, interval, method, subtitle, title

_STYLE = {"better": "bold green", "worse": "bold red", "too few seeds": "yellow"}


def print_analysis(analysis: Analysis, console: Console) -> None:
    """Print the verdict, the results, the tests against the reference and the costs."""
    parts: list[Table | Text] = [Text(f"{title(analysis)}: {subtitle(analysis)}", style="bold")]
    parts += [_results(analysis, metric) for metric in analysis.metrics]
    if len(analysis.results) > 1:
        parts += [_tests(analysis, metric) for metric in analysis.metrics]
        parts.append(Text(method(analysis), style="dim"))
    parts.append(_costs(analysis))
    console.print()
    for part in parts:
        console.print(part)
        console.print()
    _lines(console, "Notes", analysis.notes)
    _lines(console, "Verdict", analysis.verdict)


def _results(analysis: Analysis, metric: Metric) -> Table:
    columns = ("mean", "sd", "95 % interval", "seeds", "best epoch*")
    table = _table(metric.with_unit(f"Final {metric.title}"), *columns)
    best_labels = leaders(metric, analysis.results)
    for result in analysis.results:
        final, best = result.final[metric.key], result.best[metric.key]
        table.add_row(
            _label(result, analysis),
            Text(
                fixed(final.mean, metric.digits),
                style="bold" if result.label in best_labels else "",
            ),
            fixed(final.sd, metric.digits),
            Text(interval(final.low, final.high, metric.digits)),
            Text(counts(result), style="red" if result.diverged else ""),
            Text(_mean_sd(best, metric.digits), style="dim"),
        )
    table.caption = "bold: the best mean; * mean (sd) of each run's best epoch, chosen on test"
    return table


def _tests(analysis: Analysis, metric: Metric) -> Table:
    columns = ("difference", "95 % interval", "p (Holm)", "detectable", "verdict")
    against = f"{metric.heading} against {analysis.reference}"
    table = _table(metric.with_unit(against, metric.difference_unit), *columns)
    for result in analysis.results:
        if metric.key not in result.versus:
            continue
        versus = result.versus[metric.key]
        table.add_row(
            _label(result, analysis),
            fixed(versus.difference, metric.digits, signed=True),
            Text(interval(versus.low, versus.high, metric.digits)),
            p_value(versus.p_holm),
            fixed(versus.smallest_detectable, metric.digits),
            Text(versus.verdict, style=_STYLE.get(versus.verdict, "")),
        )
    return table


def _costs(analysis: Analysis) -> Table:
    columns = ("time per step", "in optimizer", "state", "state per parameter")
    table = _table("Cost", *columns)
    for result in analysis.results:
        table.add_row(
            _label(result, analysis),
            duration(result.step_seconds),
            percent(result.optimizer_share),
            size(result.state_bytes),
            size(result.bytes_per_parameter),
        )
    return table


def _table(name: str, *columns: str) -> Table:
    table = Table(
        title=Text(name),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        caption_style="dim",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    # only the label may fold: a number in two lines is hard to read
    table.add_column("optimizer", overflow="fold", min_width=8)
    for column in columns:
        side: Literal["left", "right"] = "left" if column == "verdict" else "right"
        table.add_column(column, justify=side, no_wrap=True)
    return table


def _label(result: OptimizerResult, analysis: Analysis) -> FoldedLabel:
    return FoldedLabel(result.label, "bold" if result.label == analysis.reference else "")


def _mean_sd(summary: Summary, digits: int) -> str:
    if summary.sd is None:
        return fixed(summary.mean, digits)
    return f"{fixed(summary.mean, digits)} ({fixed(summary.sd, digits)})"


def _lines(console: Console, name: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    console.print(Text(name, style="bold"))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    console.print()
