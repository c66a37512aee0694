"""What the paper's tables and figures tell at a smaller scale, in sentences made from the runs.

Each function takes the loaded runs of a target and returns Markdown; none has a number of its own
but the paper's. `publish_paper.py` puts them on the page.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

import pages

from lpsgd.lab.analysis import stats
from lpsgd.lab.analysis.curves import final_values, learning_curve
from lpsgd.lab.formatting import duration
from lpsgd.lab.paper.figures.accuracy import FIG2_STATED
from lpsgd.lab.paper.figures.fig1 import clearly_negative, spectra
from lpsgd.lab.paper.protocol import RunGroup
from lpsgd.lab.paper.tables import decay, published

Scores = Mapping[str, float]


def accuracies(group: RunGroup) -> dict[int, float]:
    """The last test accuracy of each seed that ended."""
    return final_values(group.runs, "test_top1")


def mean_accuracies(groups: Sequence[RunGroup]) -> dict[str, float]:
    """Of each line of a figure the mean last accuracy, without those of which all diverged."""
    scores = {group.label: list(accuracies(group).values()) for group in groups}
    return {label: statistics.mean(own) for label, own in scores.items() if own}


def by_model(groups: Sequence[RunGroup]) -> dict[str, Scores]:
    """The mean last accuracy of each optimizer on each network; -inf if every run diverged."""
    found: dict[str, dict[str, float]] = {}
    for group in groups:
        scores = list(accuracies(group).values())
        found.setdefault(group.model, {})[group.label] = statistics.mean(scores or [-math.inf])
    return found


def published_scores(groups: Sequence[RunGroup]) -> dict[str, Scores]:
    """The paper's last accuracies of the same."""
    found: dict[str, dict[str, float]] = {}
    for group in groups:
        last = published.checkpoints(group.dataset)[-1]
        place = group.dataset, group.model, group.label, "test_top1", last
        found.setdefault(group.model, {})[group.label] = published.result(*place).mean
    return found


def orders(versions: Mapping[str, Sequence[RunGroup]]) -> str:
    """The optimizers of each network by their last accuracy: the paper's, and these runs'."""
    columns = {"the paper, 200 epochs": published_scores(next(iter(versions.values())))}
    columns |= {f"here, {how}": by_model(groups) for how, groups in versions.items()}
    body = [
        [model, *(_order(found[model]) if model in found else "–" for found in columns.values())]
        for model in columns["the paper, 200 epochs"]
    ]
    return pages.table(["network", *columns], body, numbers=False)


def _order(scores: Scores) -> str:
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    ends = {
        label: f"{mean:.1f}" if mean > -math.inf else "diverged" for label, mean in scores.items()
    }
    return ", ".join(f"{label} {ends[label]}" for label in ranked)


def table_sentence(groups: Sequence[RunGroup], how: str) -> str:
    """On how many networks LPSGDM is first, and how many pairs keep the paper's order."""
    paper, here = published_scores(groups), by_model(groups)
    pairs = [(model, a, b) for model in here for a, b in combinations(here[model], 2)]
    kept = sum((paper[m][a] > paper[m][b]) == (here[m][a] > here[m][b]) for m, a, b in pairs)
    margins = "; ".join(f"on {model} {_margin(model, groups)}" for model in here)
    return (
        f"With {how}, {published.OURS} ends first on {firsts(here)} of {len(here)} networks (in "
        f"the paper on {firsts(paper)}), and {kept} of the {len(pairs)} pairs of optimizers stand "
        f"in the paper's order. {published.OURS} minus the best of the others, in points, paired "
        f"by seed: {margins}."
    )


def firsts(found: Mapping[str, Scores]) -> int:
    """On how many networks LPSGDM is first."""
    return sum(max(each, key=each.__getitem__) == published.OURS for each in found.values())


def misled(own: Sequence[RunGroup], searched: Sequence[RunGroup]) -> str:
    """Where a searched learning rate ends below the paper's own, as a sentence."""
    before = {(group.model, group.label): group for group in own}
    pairs = [(group, before[group.model, group.label]) for group in searched]
    worse = [
        f"{group.label} on {group.model} {_difference(accuracies(group), accuracies(other))}"
        for group, other in pairs
        if (paired(accuracies(group), accuracies(other)).difference or 0.0) < 0
    ]
    if not worse:
        return "No searched rate ends below the paper's own."
    return (
        "One seed and a part of the training set choose a rate, and may choose wrongly. Below the "
        f"paper's own rate end, in points, paired by seed: {'; '.join(worse)}."
    )


def _margin(model: str, groups: Sequence[RunGroup]) -> str:
    own = {g.label: accuracies(g) for g in groups if g.model == model}
    ours = own.pop(published.OURS)
    means = {label: statistics.mean(scores.values()) for label, scores in own.items() if scores}
    best = max(means, key=means.__getitem__)
    return f"{_difference(ours, own[best])} against {best}"


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> stats.Paired:
    """first - second over the seeds that both have."""
    seeds = sorted(first.keys() & second.keys())
    return stats.paired([first[s] for s in seeds], [second[s] for s in seeds])


def _difference(first: Mapping[int, float], second: Mapping[int, float]) -> str:
    """first - second with its interval."""
    found = paired(first, second)
    return pages.interval(found.difference, found.low, found.high, 2) or "no common seed"


def fig1_sentence(groups: Sequence[RunGroup]) -> str:
    """Whether negative eigenvalues disappear and extreme ones become rarer, as the paper says."""
    (group,) = groups
    (optimizer,) = (name for name, lab in published.OPTIMIZERS.items() if lab == group.label)
    records = spectra(group)
    measuring = sum(record["seconds"] for record in records)
    ends = records[0], records[-1]
    first, last = (record["statistics"] for record in ends)
    low = min(records, key=lambda record: record["statistics"]["lambda_max"])
    lowest = f"{low['statistics']['lambda_max']:.3g}, its lowest, at epoch {low['epoch']:g}"
    sizes = " to ".join(f"{-100 * s['lambda_min'] / s['lambda_max']:.2g} %" for s in (first, last))
    shares = " to ".join(f"{100 * clearly_negative(record):.2g} %" for record in ends)
    early, late = len(first["outliers"]), len(last["outliers"])
    return (
        f"Under {optimizer}, in one run, from the first measurement to the last "
        f"({len(records)} of them, {duration(measuring)} of one core besides training): the "
        f"size of the smallest eigenvalue, which is negative, goes from {sizes} of the largest, "
        f"and the share of eigenvalues below −1 % of the largest from {shares}. The largest goes "
        f"from {first['lambda_max']:.3g} over {lowest}, to {last['lambda_max']:.3g}; isolated "
        f"eigenvalues above the bulk: {early} → {late}. The paper says that extreme eigenvalues "
        f"become rarer, which {_holds(late < early)}, and that negative ones disappear, which "
        f"{_holds(last['lambda_min'] >= 0)}."
    )


def _holds(true: bool) -> str:
    return "holds here" if true else "does not hold here"


def fig2_sentence(groups: Sequence[RunGroup]) -> str:
    """LPSGD minus SGD on each panel, beside what the introduction says."""
    parts = [
        f"{here} on {panel} (the paper says {paper})" for panel, paper, here in fig2_gains(groups)
    ]
    return (
        "Test accuracy of LPSGD minus that of SGD, in points, paired by seed with 95 % intervals: "
        f"{'; '.join(parts)}."
    )


def fig2_gains(groups: Sequence[RunGroup]) -> Iterator[tuple[str, str, str]]:
    """Of each panel its name, the paper's gain and this one."""
    for dataset, model in dict.fromkeys((g.dataset, g.model) for g in groups):
        own = {g.label: accuracies(g) for g in groups if g.dataset == dataset}
        before, after = FIG2_STATED[dataset]
        here = _difference(own["LPSGD"], own["SGD"])
        yield f"{model} and {published.DATASETS[dataset]}", pages.signed(after - before, 2), here


def fig4_sentence(groups: Sequence[RunGroup]) -> str:
    """The p_max that ends best, and which others are certainly worse."""
    scores = {group.label: accuracies(group) for group in groups}
    means = mean_accuracies(groups)
    best = max(means, key=means.__getitem__)
    worse = ", ".join(_certainly_worse(scores, best)) or "no other value"
    ends = ", ".join(f"{label.rpartition(' ')[2]}: {mean:.1f}" for label, mean in means.items())
    return (
        f"{shape(list(means.values()))} p_max ({ends} %). {best} ends best; certainly worse, "
        "paired by seed at 95 % without a correction for the number of comparisons: "
        f"{worse}. All have the paper's one "
        "learning rate, with which a larger p_max also takes longer steps: the first epoch's "
        f"update is, as a multiple of that with {groups[0].label}, {_first_steps(groups)}."
    )


def shape(means: Sequence[float]) -> str:
    """How accuracy moves over the values of p_max."""
    gains = [b - a for a, b in pairwise(means)]
    if all(gain > 0 for gain in gains) or all(gain < 0 for gain in gains):
        return f"Accuracy {'rises' if gains[0] > 0 else 'falls'} with every increase of"
    return "Accuracy is not monotone in"


def _first_steps(groups: Sequence[RunGroup]) -> str:
    """How long the update is at the end of the first epoch, beside that of the first p_max."""
    curves = {group.label: learning_curve(group.runs, "update_rms").points for group in groups}
    sizes = {label: points[0].mean for label, points in curves.items() if points}
    base = sizes[groups[0].label]
    return ", ".join(
        f"{pages.factor(v / base)} at {label.rpartition(' ')[2]}" for label, v in sizes.items()
    )


def _certainly_worse(scores: Mapping[str, Mapping[int, float]], best: str) -> Iterator[str]:
    for label, own in scores.items():
        high = paired(own, scores[best]).high
        if high is not None and high < 0:
            yield label


def decay_sentence(groups: Sequence[RunGroup]) -> str:
    """By how much each version shrinks the step per learning rate, and where it ends."""
    versions = {group.label: group for group in groups}
    rows = decay.summary_rows({label: group.runs for label, group in versions.items()})
    parts = [
        f"{label} by {pages.factor(ratio)} until epoch {epoch} ({mean:.1f} %)"
        for label, _, _, epoch, ratio, mean, _ in rows
    ]
    against = "; ".join(
        f"{label} {against_paper(versions, label)}" for label in versions if label != "paper"
    )
    return (
        "Over the run the step, divided by the learning rate, shrinks (and test accuracy ends at): "
        f"{', '.join(parts)}. In points against the paper's rule, paired by seed: {against}."
    )


def against_paper(versions: Mapping[str, RunGroup], label: str) -> str:
    """How much better a version ends than the paper's rule."""
    return _difference(accuracies(versions[label]), accuracies(versions["paper"]))
