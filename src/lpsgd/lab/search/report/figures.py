"""The figures of a sweep, each with the numbers that it draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from lpsgd.lab.report.document import Picture, Table
from lpsgd.lab.report.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    VERMILION,
    canvas,
    series_styles,
)
from lpsgd.lab.report.widths import COLUMN, text_width
from lpsgd.lab.search.outcome import Outcome, TrialResult, Winner, best_by_lr, pruned_text
from lpsgd.lab.search.score_kind import ScoreKind
from lpsgd.lab.search.space import Competitor

_SHOWN = 25.0  # percentage points below the best that the axes reach
_BELOW_WINNERS = 5.0  # and below the worst winner, whose own rates are to be seen
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LEGEND_ENTRY = 1.45  # inches that the longest entry of a legend takes
_LEAST_TRIALS = 8  # below which a forest fitted to them says nothing
_MOST_CELLS = 12  # on a side of a heat map; with more values, points are drawn instead


def accuracy_over_lr(outcome: Outcome) -> list[Picture | Table]:
    """A panel for each competitor: every trial, the best at each lr, the good region."""
    searched = [c.label for c in outcome.sweep.competitors if "lr" in c.searched]
    if not searched:
        return []
    winners = {winner.label: winner for winner in outcome.winners}
    with _panels(len(searched), sharex=True, sharey=True) as (figure, axes):
        bottom = _bottom(outcome.trials, outcome.kind, outcome.winners)
        for axis, label in zip(axes, searched, strict=True):
            axis.set_title(f"{label}: no winner")
            _draw_lr(axis, outcome.of(label), winners.get(label), bottom)
        for axis in axes:
            axis.set_xscale("log")
            axis.set_ylim(bottom, _top(outcome.trials, outcome.kind, bottom))
            axis.set_xlabel("learning rate")
            axis.tick_params(labelbottom=True)
        axes[0].set_ylabel(outcome.kind.axis)
        _legend_of_states(figure, outcome, bottom)
    rows = [
        (label, lr, top1)
        for label in searched
        for lr, top1 in best_by_lr(outcome.of(label))
        if not math.isnan(top1)
    ]
    caption = (
        f"{_heading(outcome)} over the learning rate. Line: the best over the other settings. "
        f"Shaded: the learning rates that lose at most {outcome.kind.lost} against the best, "
        f"with their width in decades.{pruned_text(outcome)}"
    )
    return [
        Picture("accuracy-over-lr", caption, figure),
        Table("accuracy-over-lr", "best by learning rate", ("label", "lr", "top1"), rows, False),
    ]


def _draw_lr(
    axis: Axes, trials: Sequence[TrialResult], winner: Winner | None, bottom: float
) -> None:
    envelope = best_by_lr(trials)
    axis.plot([lr for lr, _ in envelope], [top1 for _, top1 in envelope], color=BLUE, zorder=2)
    for state, look in _LOOKS.items():
        mine = [t for t in trials if t.state == state and t.top1 >= bottom]
        axis.plot([t.settings["lr"] for t in mine], [t.top1 for t in mine], **look)
    below = [t.settings["lr"] for t in trials if t.top1 < bottom]
    if below:  # an empty line that is not clipped would spoil the layout
        axis.plot(below, [bottom] * len(below), clip_on=False, zorder=4, **_BELOW)
    if winner is None:
        return
    region = winner.region
    title = winner.label
    if region is not None:
        axis.axvspan(region.low, region.high, color=GREEN, alpha=0.15, lw=0, zorder=0)
        title += f": {region.shown} decades"
    best = winner.trial
    axis.plot(best.settings["lr"], best.top1, "*", color=INK, markersize=9, zorder=5)
    axis.set_title(title)


_BELOW: dict[str, Any] = {"ls": "", "marker": "v", "color": VERMILION, "markersize": 4.5}
_LOOKS: dict[str, dict[str, Any]] = {
    "complete": {"ls": "", "marker": "o", "color": BLUE, "markersize": 3.5, "alpha": 0.7},
    "pruned": {"ls": "", "marker": "o", "color": MUTED, "mfc": "none", "markersize": 4},
    "diverged": {"ls": "", "marker": "x", "color": VERMILION, "markersize": 4.5},
}


def _legend_of_states(figure: Figure, outcome: Outcome, bottom: float) -> None:
    from matplotlib.lines import Line2D

    present = {trial.state for trial in outcome.trials}
    names = {"complete": "trial", "pruned": "pruned (its last score)", "diverged": "diverged"}
    handles = [Line2D([], [], label=names[s], **look) for s, look in _LOOKS.items() if s in present]
    if any(trial.top1 < bottom for trial in outcome.trials):
        handles.append(Line2D([], [], label="below the axis", **_BELOW))
    if outcome.winners:
        handles.append(Line2D([], [], ls="", marker="*", color=INK, markersize=9, label="chosen"))
    columns = min(len(handles), max(1, int(figure.get_figwidth() / _LEGEND_ENTRY)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def heat_maps(outcome: Outcome) -> list[Picture | Table]:
    """Accuracy over lr and p_max for each competitor in which both were searched."""
    shown = [c for c in outcome.sweep.competitors if {"lr", "p"} <= set(c.searched)]
    if not shown:
        return []
    with _panels(len(shown), height=2.9, width=COLUMN * 1.25) as (figure, axes):
        for axis, competitor in zip(axes, shown, strict=True):
            _draw_heat(figure, axis, outcome.of(competitor.label), outcome.kind)
            axis.set_title(competitor.label)
            axis.grid(False)
    rows = [
        (c.label, lr, p, top1)
        for c in shown
        for (lr, p), top1 in sorted(_best_cells(outcome.of(c.label)).items())
    ]
    caption = (
        f"{_heading(outcome)} over the learning rate and p_max: the best over the other settings. "
        "Empty: not tried. Many different values are drawn as points where they lie. Pruned trials "
        "count with their last score."
    )
    return [
        Picture("lr-and-p", caption, figure),
        Table("lr-and-p", "best by lr and p_max", ("label", "lr", "p", "top1"), rows, False),
    ]


def _best_cells(trials: Sequence[TrialResult]) -> dict[tuple[float, float], float]:
    cells: dict[tuple[float, float], float] = {}
    for trial in trials:
        place = (float(trial.settings["lr"]), float(trial.settings["p"]))
        cells[place] = max(cells.get(place, -math.inf), trial.top1)
    return cells


def _draw_heat(figure: Figure, axis: Axes, trials: Sequence[TrialResult], kind: ScoreKind) -> None:
    cells = _best_cells(trials)
    rates, exponents = (sorted({place[k] for place in cells}) for k in (0, 1))
    low, high = _bottom(trials, kind), max(cells.values())
    if max(len(rates), len(exponents)) > _MOST_CELLS:
        drawn: Any = axis.scatter(
            [lr for lr, _ in cells],
            [p for _, p in cells],
            c=list(cells.values()),
            vmin=low,
            vmax=high,
            s=28,
            edgecolors=MUTED,
            linewidths=0.4,
        )
        axis.set_xscale("log")
    else:
        table = [[cells.get((lr, p), math.nan) for lr in rates] for p in exponents]
        drawn = axis.imshow(table, origin="lower", aspect="auto", vmin=low, vmax=high)
        axis.set_xticks(range(len(rates)), [f"{lr:.3g}" for lr in rates], rotation=45, ha="right")
        axis.set_yticks(range(len(exponents)), [f"{p:.3g}" for p in exponents])
        _write_cells(axis, table, low, high)
    axis.set_xlabel("learning rate")
    axis.set_ylabel(r"$p_\mathrm{max}$")
    bar = figure.colorbar(drawn, ax=axis, extend="min" if min(cells.values()) < low else "neither")
    bar.set_label(kind.axis)


def _write_cells(axis: Axes, table: list[list[float]], low: float, high: float) -> None:
    for y, row in enumerate(table):
        for x, value in enumerate(row):
            if not math.isnan(value):
                dark = value < low + 0.6 * (high - low)  # viridis is dark there
                # not the white that turns dark with the page: a cell keeps its colour
                ink = "#fefefe" if dark else "#000000"
                axis.text(x, y, f"{value:.3g}", ha="center", va="center", size=6, color=ink)


def importance_of_settings(outcome: Outcome) -> list[Picture | Table]:
    """Bars: the share of the spread of accuracy that each setting explains."""
    found = {c.label: importances(outcome, c) for c in outcome.sweep.competitors}
    found = {label: shares for label, shares in found.items() if len(shares) > 1}
    if not found:
        return []
    with _panels(len(found), sharex=True, height=1.9) as (figure, axes):
        for axis, (label, shares) in zip(axes, found.items(), strict=True):
            names = list(shares)[::-1]
            bars = axis.barh(names, [100 * shares[name] for name in names], color=BLUE, height=0.6)
            axis.bar_label(bars, fmt="%.0f", padding=2, size=7, color=INK)
            axis.set_title(label)
            axis.set_xlim(0, 112)
            axis.set_ylim(len(names) - 0.5 - max(map(len, found.values())), len(names) - 0.5)
            axis.set_xticks([0, 25, 50, 75, 100])
            axis.set_xlabel("share of the spread [%]")
            axis.tick_params(labelbottom=True)
            axis.grid(axis="y", visible=False)
    caption = (
        "How much of the spread of the trials' accuracy each setting explains by itself and with "
        "others (fANOVA), over the trials that were trained to the end."
    )
    rows = [(label, name, s) for label, shares in found.items() for name, s in shares.items()]
    return [
        Picture("importance", caption, figure),
        Table("importance", "importance", ("label", "setting", "share"), rows, False),
    ]


def importances(outcome: Outcome, competitor: Competitor) -> dict[str, float]:
    """The share of the spread that each setting explains (fANOVA), the largest first.

    Empty if it cannot be told. Trials that diverged count with an accuracy of 0; pruned ones, which
    were scored earlier than the others, do not count.
    """
    study = optuna.create_study(direction="maximize")
    distributions = {name: choice.distribution() for name, choice in competitor.searched.items()}
    trials = [t for t in outcome.of(competitor.label) if t.epochs == outcome.sweep.how.epochs]
    for trial in trials:
        params = {
            name: choice.name(trial.settings[name]) for name, choice in competitor.searched.items()
        }
        study.add_trial(create_trial(params=params, distributions=distributions, value=trial.top1))
    if len(trials) < _LEAST_TRIALS or len({trial.top1 for trial in trials}) < 2:
        return {}
    return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))


def best_so_far(outcome: Outcome) -> list[Picture | Table]:
    """The best validation accuracy after each trial, one line for each competitor."""
    rows: list[tuple[str, int, float]] = []
    if not outcome.winners:
        return []
    with canvas(min(text_width(), 5.0), 2.8) as figure:
        axis = figure.add_subplot()
        styles = series_styles(c.label for c in outcome.sweep.competitors)
        for place, competitor in enumerate(outcome.sweep.competitors):
            colour, dash = styles[competitor.label]
            line = _running_best(outcome.of(competitor.label))
            rows += [(competitor.label, count, best) for count, best in line]
            axis.step(
                [count for count, _ in line],
                [best for _, best in line],
                where="post",
                label=competitor.label,
                color=colour,
                ls=dash,
                marker=_MARKERS[place % len(_MARKERS)],
                markersize=3.5,
                markevery=max(1, len(line) // 8),
            )
        bottom = _bottom(outcome.trials, outcome.kind, outcome.winners)
        axis.set_ylim(max(axis.get_ylim()[0], bottom), None)
        axis.set_xlabel("trials")
        axis.set_ylabel(f"best so far, {outcome.kind.axis}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside right upper")
    caption = f"{_heading(outcome)}: the best so far against the number of trials."
    return [
        Picture("best-so-far", caption, figure),
        Table("best-so-far", "best so far", ("label", "trials", "top1"), rows, False),
    ]


def _running_best(trials: Sequence[TrialResult]) -> list[tuple[int, float]]:
    """(number of trials, best accuracy), from the first trial that was trained to the end on."""
    line: list[tuple[int, float]] = []
    best = -math.inf
    for count, trial in enumerate(trials, start=1):
        if trial.state == "complete":
            best = max(best, trial.top1)
        if best > -math.inf:
            line.append((count, best))
    return line


def _heading(outcome: Outcome) -> str:
    """What is drawn, as it begins a caption."""
    return outcome.kind.axis.removesuffix(" [%]").capitalize()


def _bottom(
    trials: Sequence[TrialResult], kind: ScoreKind, winners: Sequence[Winner] = ()
) -> float:
    """Where axes begin: at the worst trial, but not far below the best, nor above a winner."""
    scores, below = [trial.top1 for trial in trials], _BELOW_WINNERS * kind.point
    far = min([max(scores) - _SHOWN * kind.point, *(w.trial.top1 - below for w in winners)])
    return max(min(scores) - kind.point, far, kind.floor)


def _top(trials: Sequence[TrialResult], kind: ScoreKind, bottom: float) -> float:
    best = max(trial.top1 for trial in trials)
    return best + 0.06 * (best - bottom + kind.point)


@contextmanager
def _panels(
    count: int, *, height: float = 2.3, width: float = 2.4, **share: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with a panel for each competitor, up to three in a row."""
    columns = min(count, max(1, int(text_width() / width)))
    rows = math.ceil(count / columns)
    across = min(text_width(), max(COLUMN, columns * width))
    with canvas(across, rows * height + 0.3) as figure:
        axes = list(figure.subplots(rows, columns, squeeze=False, **share).flat)
        for spare in axes[count:]:
            spare.remove()
        yield figure, axes[:count]


def all_figures(outcome: Outcome) -> list[Picture | Table]:
    """Every figure that this sweep has the settings for."""
    return [
        *accuracy_over_lr(outcome),
        *heat_maps(outcome),
        *importance_of_settings(outcome),
        *best_so_far(outcome),
    ]


def searched_names(competitors: Sequence[Competitor]) -> list[str]:
    """The settings that any competitor searches, in the order of the space."""
    return list(dict.fromkeys(name for c in competitors for name in c.searched))
