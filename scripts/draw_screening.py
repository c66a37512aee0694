"""Write what the screening found: tables in docs/rules.md, figures and CSV files in docs/results.

python scripts/draw_screening.py

Reads docs/results/screening/runs.csv, which benchmarks/screening.py writes, and nothing else: the
same rows give the same files. What the rows say is found by screening_results.py beside this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]

import pages  # noqa: E402
from scores import UNITS, Dot, draw_dots  # noqa: E402
from screening import RESULTS, TASKS, Screening, read_screening  # noqa: E402
from screening_results import (  # noqa: E402
    ADDITIONS,
    EXPONENTS,
    REFERENCE,
    Found,
    Gain,
    as_csv,
    conclude,
    finished,
    gains_csv,
    gains_over_muon,
    gains_table,
    leaders_table,
    metric,
    score,
    table,
)

from lpsgd.lab.report import style, widths  # noqa: E402
from lpsgd.lab.store.disk.files import write_text  # noqa: E402

PAGE = ROOT / "docs/rules.md"
GAINS = {"exponents": EXPONENTS, "additions": ADDITIONS}  # what is held against Muon, and where
WHOLE = ("convnet", "gpt")  # the tasks with all candidates; the others have the leaders


def draw_scores(screening: Screening, tasks: Sequence[str], stem: Path) -> None:
    """The fresh seeds of each candidate with the interval of their mean, a panel for each task."""
    shown = {task: conclude(screening, task) for task in tasks}
    rows = max(map(len, shown.values()))
    with style.canvas(widths.TEXT, 0.9 + 0.17 * rows) as figure:
        panels = figure.subplots(1, len(tasks), squeeze=False)[0]
        for axes, (task, found) in zip(panels, shown.items(), strict=True):
            _scores(axes, found, UNITS[metric(screening, task)][0], task)
        style.save_figure(figure, stem)


def _scores(axes: Axes, found: Sequence[Found], unit: str, task: str) -> None:
    reference = next((f.rank for f in found if f.candidate == REFERENCE), None)
    dots = [
        Dot(f.candidate, f.rank, f.scores.low, f.scores.high, _colour(f.candidate)) for f in found
    ]
    draw_dots(axes, dots, reference, unit)
    axes.set_title(task)


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


def draw_exponents(screening: Screening, gains: Sequence[Gain], stem: Path) -> None:
    """What other exponents gain over p = inf, a panel for accuracies and one for likelihoods."""
    kinds = [k for k in UNITS if any(metric(screening, gain.task) == k for gain in gains)]
    shown = [[gain for gain in gains if metric(screening, gain.task) == k] for k in kinds]
    heights = [len(own) for own in shown]
    with style.canvas(widths.TEXT, 1.4 + 0.17 * sum(heights)) as figure:
        panels = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, own, kind in zip(panels, shown, kinds, strict=True):
            _gains(axes, own, f"gain over p = inf in {UNITS[kind][0]}")
        style.save_figure(figure, stem)


def _gains(axes: Axes, gains: Sequence[Gain], label: str) -> None:
    dots = [
        Dot(
            f"{gain.task}: {gain.candidate.removeprefix('Muon, ')}",
            gain.paired.difference,
            gain.paired.low,
            gain.paired.high,
            style.BLUE if gain.certain else style.MUTED,
        )
        for gain in gains
    ]
    draw_dots(axes, dots, 0.0, label)


def tables(screening: Screening, tasks: Sequence[str]) -> dict[str, str]:
    """What stands between the marks of the page."""
    found = {
        task: table(conclude(screening, task), metric(screening, task))
        for task in tasks
        if task in WHOLE
    }
    photographs = [task for task in tasks if metric(screening, task) == "top1"]
    if len(photographs) > 1:
        found["leaders"] = leaders_table(screening, photographs)
    for name, rules in GAINS.items():
        found[name] = gains_table(gains_over_muon(screening, tasks, rules), screening)
    return found


def main() -> None:
    """Write page, figures and CSV files."""
    screening = read_screening(TASKS, RESULTS)
    tasks = finished(screening)
    if missing := [task for task in screening.tasks if task not in tasks]:
        print(f"left out, because runs are missing: {', '.join(missing)}")
    page = pages.fill_file(PAGE, tables(screening, tasks), Path(__file__).name)
    write_text(RESULTS.with_name("summary.csv"), as_csv(screening, tasks))
    for name, rules in GAINS.items():
        found = gains_over_muon(screening, tasks, rules)
        write_text(RESULTS.with_name(f"{name}.csv"), gains_csv(found))
    write_text(PAGE, page)
    whole = [task for task in tasks if task in WHOLE]
    draw_scores(screening, whole, RESULTS.with_name("scores"))
    draw_rates(screening, whole, RESULTS.with_name("rates"))
    exponents = gains_over_muon(screening, tasks, EXPONENTS)
    draw_exponents(screening, exponents, RESULTS.with_name("exponents"))


if __name__ == "__main__":
    main()
