"""Write what the screening found: tables in docs/rules.md, figures and a CSV in docs/results.

python scripts/draw_screening.py

Reads docs/results/screening/runs.csv, which benchmarks/screening.py writes, and nothing else: the
same rows give the same files.
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from screening import RESULTS, TASKS, Row, Screening, read_screening  # noqa: E402

from lpsgd.lab.analysis import stats  # noqa: E402
from lpsgd.lab.report import style, widths  # noqa: E402
from lpsgd.lab.store.disk.files import write_text  # noqa: E402

PAGE = ROOT / "docs/rules.md"
BEGIN, END = "<!-- {}: python scripts/draw_screening.py -->\n", "<!-- end of {} -->"
REFERENCE = "AdamW"
LOST = {"top1": 1.0, "nll": 0.05}  # what may be lost at a good learning rate
UNITS = {"top1": ("test accuracy, %", 2), "nll": ("test NLL, nats", 3)}


@dataclass(frozen=True)
class Found:
    """One candidate on one task: the winner's fresh seeds, and how wide its good region is."""

    candidate: str
    lr: float
    scores: stats.Summary
    versus: stats.Paired
    p_holm: float | None
    width: float
    at_least: bool

    @property
    def rank(self) -> float:
        """The mean score."""
        return math.nan if self.scores.mean is None else self.scores.mean


def metric(screening: Screening, task: str) -> str:
    """What decides on a task."""
    return str(screening.tasks[task]["metric"])


def score(row: Row, name: str) -> float | None:
    """The score of a run in that metric; None if it diverged."""
    return row.top1 if name == "top1" else row.nll


def conclude(screening: Screening, task: str) -> list[Found]:
    """The candidates that have fresh seeds, the best first."""
    name = metric(screening, task)
    tested: dict[str, dict[int, float]] = {}
    for row in screening.rows.values():
        value = score(row, name)
        if row.task == task and row.split == "test" and value is not None:
            tested.setdefault(row.candidate, {})[row.seed] = value
    reference = tested.get(REFERENCE, {})
    versus = {}
    for candidate, values in tested.items():
        shared = sorted(values.keys() & reference.keys())
        versus[candidate] = stats.paired(
            [values[s] for s in shared], [reference[s] for s in shared]
        )
    others = [candidate for candidate in tested if candidate != REFERENCE]
    corrected = dict(zip(others, stats.holm([versus[c].p for c in others]), strict=True))
    found = []
    for candidate, values in tested.items():
        width, at_least = good_width(screening.trials(task, candidate), name)
        found.append(
            Found(
                candidate,
                screening.best_rate(task, candidate),
                stats.summarise(list(values.values())),
                versus[candidate],
                corrected.get(candidate),
                width,
                at_least,
            )
        )
    return sorted(found, key=lambda f: f.rank, reverse=name == "top1")


def good_width(trials: Sequence[Row], name: str) -> tuple[float, bool]:
    """The factor between the lowest and the highest neighbouring rate that loses at most `LOST`.

    True if the region reaches the lowest or highest rate that was tried.
    """
    sign = 1 if name == "top1" else -1
    values = [-math.inf if (value := score(row, name)) is None else sign * value for row in trials]
    best = max(range(len(values)), key=values.__getitem__)
    low = high = best
    while low > 0 and values[low - 1] >= values[best] - LOST[name]:
        low -= 1
    while high < len(values) - 1 and values[high + 1] >= values[best] - LOST[name]:
        high += 1
    return trials[high].lr / trials[low].lr, low == 0 or high == len(values) - 1


def table(found: Sequence[Found], name: str) -> str:
    """Markdown, the best first."""
    unit, digits = UNITS[name]
    lines = [
        f"| rule | lr | {unit} | against {REFERENCE} | p (Holm) | good rates span |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for f in found:
        half = "" if f.scores.high is None else f" ± {f.scores.high - f.rank:.{digits}f}"
        difference, p = "", ""
        if f.candidate != REFERENCE and f.versus.difference is not None:
            difference = f"{f.versus.difference:+.{digits}f}".replace("-", "−")
            p = "" if f.p_holm is None else _p(f.p_holm)
        bound = "≥ " if f.at_least else ""
        lines.append(
            f"| {f.candidate} | {f.lr:.2g} | {f.rank:.{digits}f}{half} | {difference} | {p} "
            f"| {bound}{f.width:.0f}× |"
        )
    return "\n".join(lines) + "\n"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def as_csv(screening: Screening, tasks: Iterable[str]) -> str:
    """Every number of the tables."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = "task,rule,metric,lr,n,mean,sd,low,high,difference,difference_low,difference_high"
    writer.writerow([*heads.split(","), "p", "p_holm", "good_rates_span", "span_is_lower_bound"])
    for task in tasks:
        for f in conclude(screening, task):
            s, v = f.scores, f.versus
            numbers = (s.mean, s.sd, s.low, s.high, v.difference, v.low, v.high, v.p, f.p_holm)
            shown = ["" if number is None else f"{number:.6g}" for number in numbers]
            first = task, f.candidate, metric(screening, task), f"{f.lr:g}", s.n
            writer.writerow([*first, *shown, f"{f.width:g}", str(f.at_least).lower()])
    return text.getvalue()


def draw_scores(screening: Screening, tasks: Sequence[str], stem: Path) -> None:
    """The fresh seeds of each candidate with the interval of their mean, a panel for each task."""
    rows = max(len(conclude(screening, task)) for task in tasks)
    with style.canvas(widths.TEXT, 0.9 + 0.17 * rows) as figure:
        panels = figure.subplots(1, len(tasks), squeeze=False)[0]
        for axes, task in zip(panels, tasks, strict=True):
            _scores(axes, conclude(screening, task), UNITS[metric(screening, task)][0], task)
        style.save_figure(figure, stem)


def _scores(axes: Axes, found: Sequence[Found], unit: str, task: str) -> None:
    places = range(len(found))
    reference = next((f.rank for f in found if f.candidate == REFERENCE), None)
    if reference is not None:
        axes.axvline(reference, color=style.MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
    for place, f in zip(places, found, strict=True):
        colour = _colour(f.candidate)
        if f.scores.low is not None and f.scores.high is not None:
            axes.plot([f.scores.low, f.scores.high], [place, place], color=colour, linewidth=2.5)
        axes.plot([f.rank], [place], "o", color=colour, markersize=4)
    axes.set_yticks(list(places), [f.candidate for f in found])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=unit, title=task)


def _colour(candidate: str) -> str:
    """By family: singular values, coordinates by a power, and everything else."""
    if "Muon" in candidate:
        return style.BLUE
    if candidate.startswith(("LPSGDM", "l_p, ", "Lion-K", "PowerStep")) or candidate == "l_p Adam":
        return style.VERMILION
    return style.MUTED


# one of each family, so that curves can be told apart
CURVES = (
    "Muon",
    "LPMuon (cautious, rows)",
    "Muon, p = 5",
    "SOAP",
    "AdamW",
    "SGDM (Nesterov)",
    "LPSGDM (the paper's)",
)


def draw_rates(screening: Screening, tasks: Sequence[str], stem: Path) -> None:
    """Validation score over the learning rate in units of the best one."""
    with style.canvas(widths.TEXT, 3.2) as figure:
        panels = figure.subplots(1, len(tasks), squeeze=False)[0]
        looks = style.series_styles(CURVES)
        for axes, task in zip(panels, tasks, strict=True):
            name = metric(screening, task)
            for candidate in CURVES:
                trials = screening.trials(task, candidate)
                points = [(r.lr, v) for r in trials if (v := score(r, name)) is not None]
                if points:
                    colour, dash = looks[candidate]
                    axes.plot(
                        *zip(*points, strict=True),
                        color=colour,
                        linestyle=dash,
                        marker=".",
                        label=candidate,
                    )
            axes.set_xscale("log")
            axes.set(xlabel="learning rate", title=task)
            axes.set_ylabel(UNITS[name][0].replace("test", "validation"))
        style.legend_below(figure, *panels)
        style.save_figure(figure, stem)


def fill(page: str, name: str, content: str) -> str:
    """The page with what stands between the marks of ``name`` replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    if not re.search(pattern, page, flags=re.DOTALL):
        raise SystemExit(f"{PAGE} has no marks for {name}")
    return re.sub(pattern, lambda _: begin + content + end, page, flags=re.DOTALL)


def main() -> None:
    """Write page, figures and CSV."""
    screening = read_screening(TASKS, RESULTS)
    tasks = [task for task in screening.tasks if conclude(screening, task)]
    write_text(RESULTS.with_name("summary.csv"), as_csv(screening, tasks))
    page = PAGE.read_text(encoding="utf-8")
    for task in tasks:
        page = fill(page, task, table(conclude(screening, task), metric(screening, task)))
    write_text(PAGE, page)
    draw_scores(screening, tasks, RESULTS.with_name("scores"))
    draw_rates(screening, tasks, RESULTS.with_name("rates"))


if __name__ == "__main__":
    main()
