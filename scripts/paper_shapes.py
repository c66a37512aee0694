"""How accuracy moves over training in the paper's tables, and in these runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import pages
import paper_findings as findings

from lpsgd.lab.paper.protocol import RunGroup, Setup
from lpsgd.lab.paper.tables import published
from lpsgd.lab.paper.tables.results import values_at

Curves = Mapping[tuple[str, str], Sequence[Mapping[int, float]]]
"""By network and optimizer, for each checkpoint the accuracies by seed."""


def shapes(versions: Mapping[str, Sequence[RunGroup]], setup: Setup) -> str:
    """LPSGDM's first places on the way, and what the second half of training brings to each."""
    labels = list(dict.fromkeys(g.label for groups in versions.values() for g in groups))
    head = [
        f"{published.OURS} first at a quarter, half, the end",
        *(f"{label}, second half" for label in labels),
    ]
    body: dict[str, list[str]] = {}  # the paper's row of the same networks stands once
    for how, groups in versions.items():
        networks = ", ".join(dict.fromkeys(group.model for group in groups))
        found = {"the paper": _published(groups), f"here, {how}": _measured(groups, setup)}
        for name, curves in found.items():
            cells = [_gain(curves, label) for label in labels]
            body[f"{networks}: {name}"] = [", ".join(map(str, _firsts(curves))), *cells]
    return pages.table(["", *head], [[name, *cells] for name, cells in body.items()])


def _published(groups: Sequence[RunGroup]) -> Curves:
    """The paper's means, as if of one seed: it gives no others."""
    return {
        (group.model, group.label): [
            {0: published.result(group.dataset, group.model, group.label, "test_top1", epoch).mean}
            for epoch in published.checkpoints(group.dataset)
        ]
        for group in groups
    }


def _measured(groups: Sequence[RunGroup], setup: Setup) -> Curves:
    return {
        (group.model, group.label): [
            values_at(group, "test_top1", epoch, setup)
            for epoch in published.checkpoints(group.dataset)
        ]
        for group in groups
    }


def _firsts(curves: Curves) -> Iterator[int]:
    """On how many networks the mean of LPSGDM is the best, at each checkpoint."""
    for place in range(len(next(iter(curves.values())))):
        means: dict[str, dict[str, float]] = {}
        for (model, label), points in curves.items():
            scores = list(points[place].values()) or [-math.inf]
            means.setdefault(model, {})[label] = statistics.mean(scores)
        yield findings.firsts(means)


def _gain(curves: Curves, label: str) -> str:
    """A mean over networks and seeds; in bold if it certainly differs from LPSGDM's."""
    own, ours = (_gains(curves, each) for each in (label, published.OURS))
    if not own:
        return "diverged"
    found = findings.paired(own, ours)
    text = pages.signed(statistics.mean(own.values()), 1)
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        return text
    return f"**{text}**"


def _gains(curves: Curves, label: str) -> dict[int, float]:
    """By seed, what the last checkpoint adds to the one before, a mean over the networks."""
    halves = [points[-2:] for (_, each), points in curves.items() if each == label]
    seeds = set.intersection(*(before.keys() & end.keys() for before, end in halves))
    return {
        seed: statistics.mean(end[seed] - before[seed] for before, end in halves)
        for seed in sorted(seeds)
    }
