"""Write what the study found: docs/study.md, the answer in the README, docs/results/study.

python scripts/draw_study.py

Reads docs/results/study/trials.csv and epochs.csv, which benchmarks/study.py writes, and nothing
else: the same rows give the same files. What they say is found by study_results.py beside this.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]

import pages  # noqa: E402
from scores import UNITS, Dot, draw_dots, width_text  # noqa: E402
from study import RESULTS  # noqa: E402
from study_results import (  # noqa: E402
    CONSTANT,
    OURS,
    PAPER,
    REFERENCE,
    Standing,
    Study,
    Test,
    compare,
    hypotheses,
    planned_tests,
    read_study,
    standings,
)

from lpsgd.lab.report import style, widths  # noqa: E402
from lpsgd.lab.store.disk.files import write_text  # noqa: E402

PAGE = ROOT / "docs/study.md"
ADVICE = ROOT / "docs/choosing.md"
ANSWERS = (ROOT / "README.md", ROOT / "docs/index.md", ADVICE)
# what the README shows
FIRST = {"convnet": "CIFAR-10 images", "gpt": "text"}
# a difference of scores in a sentence: unit and digits
LEADS = {"top1": ("points", 1), "nll": ("nats", 2)}
NAMES = {"LPSGDM": "LPSGDM (the paper's)", "LPSGDM-rms": 'LPSGDM, normalize="rms"'}
NAMES[CONSTANT] = "LPSGDM, p = 6 throughout"


def task_table(study: Study, task: str) -> str:
    """All competitors of a task, the best first."""
    unit, digits = UNITS[study.metric(task)]
    head = [
        "competitor",
        "lr",
        unit,
        f"better than {REFERENCE} by",
        "ms a step",
        "in the optimizer",
    ]
    head += ["bytes a parameter", f"steps to {REFERENCE}'s end", "seconds", "good rates span"]
    return pages.table(head, [_row(s, digits) for s in standings(study, task)])


def _row(s: Standing, digits: int) -> list[str]:
    v = s.versus
    return [
        NAMES.get(s.label, s.label) + (f" ({s.diverged} diverged)" if s.diverged else ""),
        f"{s.lr:.3g}{' (edge)' if s.at_edge else ''}",
        pages.mean_text(s.scores, digits),
        "" if s.label == REFERENCE else pages.interval(v.difference, v.low, v.high, digits),
        f"{s.milliseconds:.0f}",
        f"{100 * s.share:.0f} %",
        f"{s.state_bytes:.1f}",
        *[f"{value:.0f}" if math.isfinite(value) else "–" for value in (s.steps_to, s.seconds_to)],
        width_text(s.width, s.at_least),
    ]


def hypotheses_table(study: Study, tests: Sequence[Test]) -> str:
    """Every test of the plan, and whether the hypothesis holds there."""
    head = ["hypothesis", "task", "difference (95 % interval)", "p (Holm)", "holds"]
    body = []
    for test in tests:
        digits = UNITS[study.metric(test.task)][1]
        claim = f"{test.hypothesis}: {test.first} {_verb(test)} {test.second}"
        difference = pages.interval(
            test.paired.difference, test.paired.low, test.paired.high, digits
        )
        decided = pages.p_text(test.p_holm)
        if test.margin is not None and test.low_90 is not None:
            decided = f"90 % above {pages.signed(test.low_90, digits)}"
        body.append([claim, test.task, difference, decided, "yes" if test.holds else "**no**"])
    return pages.table(head, body)


def _verb(test: Test) -> str:
    if test.hypothesis == 3:
        return "does not beat"
    return "beats" if test.margin is None else "is not worse than"


def verdicts(study: Study, tests: Sequence[Test]) -> str:
    """How many of its tests each hypothesis passed; no verdict before all of them were made."""
    if missing := [task for task in study.plan["tasks"] if task not in study.finished()]:
        return (
            f"Not run to its end yet: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
            f"missing. What is here is corrected for the tests that were made, fewer than the "
            f"{planned_tests(study)} of the plan, and is no verdict on it.\n"
        )
    texts = {
        1: "LPMuon beats tuned SGDM, AdamW and Lion on each task",
        2: "LPMuon beats plain Muon on the GPT, and is not worse by more than 0.5 points on images",
        3: "LPSGDM as printed does not beat AdamW on any task",
    }
    lines = []
    for number, text in texts.items():
        own = [test for test in tests if test.hypothesis == number]
        held = sum(test.holds for test in own)
        yes, no = ("is not refuted", "is refuted") if number == 3 else ("holds", "does not hold")
        word = yes if held == len(own) else no
        lines.append(f"{number}. {text}: **{word}** ({held} of {len(own)} tests).\n")
    return "".join(lines)


def edges(study: Study, tasks: Sequence[str]) -> str:
    """Whose best rate was the lowest or the highest tried, so that more of them might do better."""
    found = {t: [s.label for s in standings(study, t) if s.at_edge] for t in tasks}
    where = "; ".join(f"{task}: {', '.join(own)}" for task, own in found.items() if own)
    if not where:
        return "No best learning rate is at the edge of its range.\n"
    return (
        "At the edge of the range of learning rates, so that a wider one might have given a better "
        f"score: {where}.\n"
    )


def answer(study: Study, tests: Sequence[Test]) -> str:
    """The study in a few sentences: on the README's two tasks, then over all."""
    ours, paper = (
        {test.task: test for test in tests if (test.first, test.second) == (label, REFERENCE)}
        for label in (OURS, PAPER)
    )
    first = Counter(standings(study, task)[0].label for task in ours)
    leaders = " and ".join(f"{label}'s on {count}" for label, count in first.most_common())
    return (
        f"Tuned with equal trials, {len(study.plan['seeds'])} paired seeds each, `{OURS}` ends "
        f"{_leads(study, ours)}; `{PAPER}` as the paper prints it ends {_leads(study, paper)}. "
        f"Of the study's {len(ours)} tasks, small networks trained for {_lengths(study)} on a "
        f"core, `{OURS}` is certainly better than {REFERENCE} on {_count(ours, 1)} and worse on "
        f"{_count(ours, -1)}, `{PAPER}` better on {_count(paper, 1)} and worse on "
        f"{_count(paper, -1)}; the best mean is {leaders}.\n"
    )


def _lengths(study: Study) -> str:
    """How long the shortest and the longest run trained."""
    runs = [run for task in study.runs.values() for own in task.values() for run in own.values()]
    times = [run.seconds[-1] for run in runs if run.seconds]
    return f"{min(times):.0f} to {max(times):.0f} seconds"


def _leads(study: Study, tests: Mapping[str, Test]) -> str:
    """By how much the first is better or worse on each of the README's tasks."""
    text, said = "", ""
    for task, where in FIRST.items():
        by = tests[task].paired.difference or 0.0
        unit, digits = LEADS[study.metric(task)]
        word = f" {'better' if by > 0 else 'worse'} than {REFERENCE}"
        text += f"{' and ' if text else ''}{abs(by):.{digits}f} {unit}"
        text += f"{'' if word == said else word} on {where}"
        said = word
    return text


def _count(tests: Mapping[str, Test], certain: int) -> int:
    return sum(test.certain == certain for test in tests.values())


def choice_table(study: Study) -> str:
    """What decides between the competitors: lead over AdamW, rates, memory and time of a step."""
    found = {task: {s.label: s for s in standings(study, task)} for task in study.plan["tasks"]}
    kinds = {metric: [task for task in found if study.metric(task) == metric] for metric in UNITS}
    images, text = kinds["top1"], kinds["nll"]
    first = next(iter(FIRST))
    head = ["", f"better than {REFERENCE} on images, points", "on text, nats"]
    head += ["best rate on images", "on text", "bytes a parameter", "time of a step"]
    body = []
    for s in standings(study, first):
        own = {task: found[task][s.label] for task in found}
        time = s.milliseconds / found[first][REFERENCE].milliseconds
        leads = [
            "" if s.label == REFERENCE else _span([own[t].versus.difference or 0.0 for t in tasks])
            for tasks in (images, text)
        ]
        rates = [_rates([own[t].lr for t in tasks]) for tasks in (images, text)]
        name = NAMES.get(s.label, s.label)
        body.append([name, *leads, *rates, f"{s.state_bytes:.1f}", f"{time:.2f}"])
    return pages.table(head, body)


def _span(values: Sequence[float], digits: int = 1) -> str:
    low, high = (pages.signed(value, digits) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _rates(values: Sequence[float]) -> str:
    low, high = (f"{value:.3g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def annealing(study: Study) -> str:
    """What annealing p costs: LPSGDM with p kept against the paper's; no test of the plan."""
    found = {task: compare(study, task, CONSTANT, PAPER)[0] for task in study.plan["tasks"]}
    spans = []
    for metric, where in {"top1": "images", "nll": "text"}.items():
        unit, digits = LEADS[metric]
        own = [v.difference or 0.0 for t, v in found.items() if study.metric(t) == metric]
        spans.append(f"{_span(own, digits)} {unit} on {where}")
    ahead = sum((v.difference or 0.0) > 0 for v in found.values())
    clear = sum(v.low is not None and v.low > 0 for v in found.values())
    return (
        f"`{PAPER}` with p = 6 throughout ends better than the paper's, which anneals p from 6 to "
        f"2, on {ahead} of {len(found)} tasks: {' and '.join(spans)} (exploratory: not a "
        f"hypothesis of the plan; the 95 % interval, without a correction, is above zero on "
        f"{clear}).\n"
    )


def standings_csv(study: Study, tasks: Sequence[str]) -> str:
    """Every number of the tables of tasks."""
    head = "task,metric,competitor,lr,lr_at_edge,n,diverged,mean,sd,low,high,better_than_adamw,"
    head += "better_low,better_high,p,milliseconds_a_step,optimizer_share,state_bytes_a_parameter,"
    head += "steps_to_adamw,seconds_to_adamw,good_rates_span,span_is_lower_bound"
    body = []
    for task in tasks:
        for s in standings(study, task):
            m, v = s.scores, s.versus
            first = (task, study.metric(task), s.label, s.lr, str(s.at_edge).lower(), m.n)
            score = (s.diverged, m.mean, m.sd, m.low, m.high, v.difference, v.low, v.high, v.p)
            cost = (s.milliseconds, s.share, s.state_bytes, s.steps_to, s.seconds_to, s.width)
            body.append([*first, *score, *cost, str(s.at_least).lower()])
    return pages.csv_text(head.split(","), body)


def hypotheses_csv(tests: Sequence[Test]) -> str:
    """Every number of the table of hypotheses."""
    head = "hypothesis,task,first,second,n,better_by,low,high,p,p_holm,margin,low_90,holds"
    body = []
    for t in tests:
        v = t.paired
        first = (t.hypothesis, t.task, t.first, t.second, v.n, v.difference, v.low, v.high, v.p)
        body.append([*first, t.p_holm, t.margin, t.low_90, str(t.holds).lower()])
    return pages.csv_text(head.split(","), body)


def draw_scores(study: Study, titles: Mapping[str, str], stem: Path) -> None:
    """Mean scores with their intervals, a panel for each task, two beside each other."""
    rows = -(-len(titles) // 2)
    with style.canvas(widths.TEXT, 2.3 * rows) as figure:
        panels = figure.subplots(rows, 2, squeeze=False).flatten()
        for axes, (task, title) in zip(panels, titles.items(), strict=False):
            unit = UNITS[study.metric(task)][0]
            lower = "" if study.sign(task) > 0 else " (lower is better)"
            _scores(axes, standings(study, task), unit + lower, title)
        for axes in panels[len(titles) :]:
            axes.set_axis_off()
        style.save_figure(figure, stem)


def _scores(axes: Axes, found: Sequence[Standing], unit: str, title: str) -> None:
    reference = next((s.scores.mean for s in found if s.label == REFERENCE), None)
    dots = [
        Dot(
            NAMES.get(s.label, s.label),
            s.scores.mean,
            s.scores.low,
            s.scores.high,
            _colour(s.label),
        )
        for s in found
    ]
    draw_dots(axes, dots, reference, unit)
    axes.set_title(title)


def _colour(label: str) -> str:
    """LPMuon, the rules on coordinates, and everything else."""
    if label == OURS:
        return style.BLUE
    return style.VERMILION if label.startswith("LPSGDM") else style.MUTED


def contents(study: Study, tasks: Sequence[str], tests: Sequence[Test]) -> dict[str, str]:
    """What stands between the marks of the page."""
    found = {"verdicts": verdicts(study, tests), "edges": edges(study, tasks)}
    if tests:
        found["hypotheses"] = hypotheses_table(study, tests)
    whole = len(tasks) == len(study.plan["tasks"])
    found["annealing"] = annealing(study) if whole else "Not run to its end yet.\n"
    for task in study.plan["tasks"]:
        found[task] = task_table(study, task) if task in tasks else "Not run to its end yet.\n"
    return found


def advice(study: Study, tests: Sequence[Test], path: Path) -> dict[str, str]:
    """What stands between the marks of the README and of the pages with advice."""
    parts = {"answer": answer(study, tests)}
    if path == ADVICE:
        parts |= {"choice": choice_table(study), "annealing": annealing(study)}
    return parts


def main() -> None:
    """Write page, figures and CSV files."""
    study = read_study()
    tasks = study.finished()
    tests = hypotheses(study, tasks)
    page = pages.fill_file(PAGE, contents(study, tasks, tests), Path(__file__).name)
    write_text(PAGE, page)
    if missing := [task for task in study.plan["tasks"] if task not in tasks]:
        print(f"left out, because runs are missing: {', '.join(missing)}")
    if not tasks:
        return
    write_text(RESULTS / "summary.csv", standings_csv(study, tasks))
    write_text(RESULTS / "hypotheses.csv", hypotheses_csv(tests))
    draw_scores(study, {task: task for task in tasks}, RESULTS / "scores")
    if not missing:
        draw_scores(study, FIRST, RESULTS / "first")
        for path in ANSWERS:
            write_text(path, pages.fill_file(path, advice(study, tests, path), Path(__file__).name))


if __name__ == "__main__":
    main()
