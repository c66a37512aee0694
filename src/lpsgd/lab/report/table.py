"""The analysis in a terminal: narrow tables, each of which fits 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lpsgd.lab.analysis import METRICS, Analysis, Metric, OptimizerResult
from lpsgd.lab.numbers import MISSING, duration, fixed, p_value, percent, size
from lpsgd.lab.stats import ALPHA, POWER, Summary

_STYLE = {"better": "bold green", "worse": "bold red", "too few seeds": "yellow"}


def render_table(analysis: Analysis, console: Console) -> None:
    """Print the verdict, the results, the tests against the reference and the costs."""
    console.print()
    console.print(Text(title(analysis), style="bold"))
    console.print()
    for metric in METRICS:
        console.print(_results(analysis, metric))
        console.print()
    if len(analysis.results) > 1:
        for metric in METRICS:
            console.print(_tests(analysis, metric))
            console.print()
        console.print(Text(method(analysis), style="dim"))
        console.print()
    console.print(_costs(analysis))
    console.print()
    _lines(console, "Notes", analysis.notes)
    _lines(console, "Verdict", analysis.verdict)


def title(analysis: Analysis) -> str:
    """What was compared, in one line."""
    what = " on ".join(str(part) for part in (analysis.model, analysis.dataset) if part)
    parts = [what or analysis.folder, _count(len(analysis.results), "optimizer")]
    parts.append(_count(len(analysis.seeds), "seed"))
    if analysis.epochs is not None:
        parts.append(_count(analysis.epochs, "epoch"))
    return ", ".join(parts)


def method(analysis: Analysis) -> str:
    """How the tests were made, with the level after correction."""
    level = next(r.versus[METRICS[0].key].alpha for r in analysis.results if r.versus)
    tests = round(ALPHA / level)
    return (
        f"Paired t-test against {analysis.reference} over shared seeds; p after Holm's correction "
        f"over the {_count(tests, 'test')} of each metric. Detectable: the smallest true "
        f"difference found with {round(100 * POWER)} % power at the corrected level "
        f"{ALPHA}/{tests} = {level:.3g}."
    )


def counts(result: OptimizerResult) -> str:
    """How many runs the numbers rest on, and what became of the others."""
    parts = [str(result.complete)]
    if result.diverged:
        parts.append(f"{result.diverged} diverged")
    if result.unfinished:
        parts.append(f"{result.unfinished} unfinished")
    return ", ".join(parts)


def interval(low: float | None, high: float | None, digits: int, *, signed: bool = False) -> str:
    """An interval as ``low to high``."""
    if low is None or high is None:
        return MISSING
    return f"{fixed(low, digits, signed=signed)} to {fixed(high, digits, signed=signed)}"


def _results(analysis: Analysis, metric: Metric) -> Table:
    table = _table(f"Final {metric.title} ({metric.unit})")
    _columns(table, "mean", "sd", "95 % interval", "seeds", "best epoch*")
    for result in analysis.results:
        final, best = result.final[metric.key], result.best[metric.key]
        table.add_row(
            _label(result, analysis),
            Text(fixed(final.mean, metric.digits), style="bold"),
            fixed(final.sd, metric.digits),
            Text(interval(final.low, final.high, metric.digits)),
            _counts(result),
            Text(_mean_sd(best, metric.digits), style="dim"),
        )
    table.caption = "* mean (sd) of each run's best epoch, chosen on test"
    return table


def _tests(analysis: Analysis, metric: Metric) -> Table:
    where = metric.title[0].upper() + metric.title[1:]
    table = _table(f"{where} against {analysis.reference} ({metric.difference_unit})")
    _columns(table, "difference", "95 % interval", "p (Holm)", "detectable", "verdict")
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
    table = _table("Cost")
    _columns(table, "time per step", "in optimizer", "state", "state per parameter")
    for result in analysis.results:
        table.add_row(
            _label(result, analysis),
            duration(result.step_seconds),
            percent(result.optimizer_share),
            size(result.state_bytes),
            bytes_per_parameter(result),
        )
    return table


def bytes_per_parameter(result: OptimizerResult) -> str:
    """Bytes of optimizer state for each parameter of the model."""
    if result.state_bytes is None or not result.parameters:
        return MISSING
    return f"{result.state_bytes / result.parameters:.2g} B"


def _table(name: str) -> Table:
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
    table.add_column("optimizer", overflow="fold", min_width=8)
    return table


def _columns(table: Table, *names: str) -> None:
    for name in names:
        # only the label may fold: a number in two lines is hard to read
        side: Literal["left", "right"] = "left" if name == "verdict" else "right"
        table.add_column(name, justify=side, no_wrap=True)


def _label(result: OptimizerResult, analysis: Analysis) -> Text:
    # Text, not str: a label is never read as rich's markup
    return Text(result.label, style="bold" if result.label == analysis.reference else "")


def _counts(result: OptimizerResult) -> Text:
    return Text(counts(result), style="red" if result.diverged else "")


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


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
