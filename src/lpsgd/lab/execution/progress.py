"""Tables and lines of how far the runs of a plan are, by the executor's events or the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean

from rich.markup import escape
from rich.table import Table

from lpsgd.lab.formatting import duration
from lpsgd.lab.labels import FoldedLabel
from lpsgd.lab.store.status import RunProgress

ENDED = ("complete", "pruned", "diverged", "failed")
_TO_COME = ("running", "interrupted", "queued")
_WORDS = {"complete": "done"}
_ORDER = ("complete", "pruned", "diverged", "failed", "running", "paused", "interrupted", "queued")
_COLOURS = {"running": "cyan", "complete": "green", "diverged": "yellow", "failed": "red"}
_MENTIONED = 3  # runs of a group that are named in its row


def time_left(runs: Sequence[RunProgress]) -> float | None:
    """Seconds until all have ended, if as many are trained at once as now; None if unknown."""
    running = [run for run in runs if run.state == "running"]
    lefts = [_left(run, runs) for run in runs if run.state in _TO_COME]
    known = [left for left in lefts if left is not None]
    if not running or len(known) < len(lefts):
        return None
    longest = max(_left(run, runs) or 0.0 for run in running)
    return max(longest, sum(known) / len(running))


def _left(run: RunProgress, runs: Sequence[RunProgress]) -> float | None:
    if run.seconds_left is not None:
        return run.seconds_left
    pace = run.seconds_per_epoch or _pace_of_others(run, runs)
    return None if pace is None or run.epochs_left is None else pace * run.epochs_left


def _pace_of_others(run: RunProgress, runs: Sequence[RunProgress]) -> float | None:
    """Seconds per epoch of the runs that are most like this one."""
    known = [other for other in runs if other.seconds_per_epoch is not None]
    alike = [other for other in known if other.network == run.network]
    same = [other for other in alike if other.label == run.label]
    paces = [o.seconds_per_epoch for o in same or alike or known if o.seconds_per_epoch is not None]
    return mean(paces) if paces else None


def progress_line(runs: Sequence[RunProgress], title: str = "") -> str:
    """One line: how many runs are where, and when all will be done; ``title`` first.

    >>> progress_line([RunProgress("sgd", 0, "mlp", 2, "a"), RunProgress("sgd", 1, "mlp", 2, "b")])
    '2 runs: 2 queued'
    """
    count = Counter(run.state for run in runs)
    states = [*_ORDER, *sorted(set(count) - set(_ORDER))]
    parts = [f"{count[state]} {_WORDS.get(state, state)}" for state in states if count[state]]
    left = time_left(runs)
    when = "" if left is None else f"; about {duration(left)} left"
    who = f"{title}: " if title else ""
    many = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{who}{many}: {', '.join(parts) or 'none'}{when}"


def progress_table(
    runs: Sequence[RunProgress], rows: int | None = None, *, title: str = ""
) -> Table:
    """One row for each run if there are at most ``rows``, else one for each optimizer."""
    many = len({run.network for run in runs}) > 1
    caption = escape(progress_line(runs, title))
    shown = Table(box=None, padding=(0, 2, 0, 0), caption=caption, caption_justify="left")
    if rows is None or len(runs) <= rows:
        _fill_by_run(shown, runs, networks=many)
    else:
        _fill_by_label(shown, runs, networks=many)
    return shown


def _fill_by_run(shown: Table, runs: Iterable[RunProgress], *, networks: bool) -> None:
    for name in ("network",) * networks + ("run", "state", "epoch", "score", "left", ""):
        shown.add_column(name, justify="right" if name in ("epoch", "score", "left") else "left")
    for run in runs:
        shown.add_row(
            *[escape(run.network)] * networks,
            FoldedLabel(f"{run.label} seed {run.seed}"),
            escape(_WORDS.get(run.state, run.state)),
            _epoch(run),
            run.score or "",
            "" if run.seconds_left is None else duration(run.seconds_left),
            escape(run.reason or run.note or ""),
            style=_COLOURS.get(run.state),
        )


def _fill_by_label(shown: Table, runs: Sequence[RunProgress], *, networks: bool) -> None:
    for name in ("network",) * networks + ("optimizer", "ended", "queued", "now"):
        shown.add_column(name, justify="right" if name in ("ended", "queued") else "left")
    for network, label in dict.fromkeys((run.network, run.label) for run in runs):
        mine = [run for run in runs if (run.network, run.label) == (network, label)]
        ended = sum(run.state in ENDED for run in mine)
        queued = sum(run.state == "queued" for run in mine)
        cells = [f"{ended}/{len(mine)}", str(queued or ""), _now(mine)]
        shown.add_row(*[escape(network)] * networks, FoldedLabel(label), *cells)


def _now(runs: Sequence[RunProgress]) -> str:
    noted = [run for run in runs if run.state not in ("queued", "complete", "pruned")]
    noted.sort(key=lambda run: run.state != "running")  # those first
    texts = [_short(run) for run in noted[:_MENTIONED]]
    more = len(noted) - len(texts)
    return ", ".join([*texts, *([f"and {more} more"] if more else [])])


def _short(run: RunProgress) -> str:
    if run.state != "running":
        return f"seed {run.seed} {run.state}"
    score = f" ({run.score})" if run.score else ""
    note = f" ({run.note})" if run.note else ""
    return f"seed {run.seed}: epoch {_epoch(run)}{score}{note}"


def _epoch(run: RunProgress) -> str:
    if run.state == "queued":
        return ""
    return f"{run.epoch}/{run.epochs}" if run.epochs is not None else str(run.epoch)
