"""The paper's results at a smaller scale in one table: what it says, and what the runs say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pages
import paper_findings as findings

from lpsgd.lab.paper.figures.fig1 import spectra
from lpsgd.lab.paper.protocol import RunGroup
from lpsgd.lab.paper.tables import decay, published


def short(groups: Mapping[str, Sequence[RunGroup]]) -> str:
    """What the paper says beside what the runs say, a line for each entry that is whole."""
    rows = [[title, *tell(groups[name])] for name, (title, tell) in SHORT.items() if name in groups]
    return pages.table(["", "the paper", "here"], rows, numbers=False)


def _short_table(groups: Sequence[RunGroup]) -> tuple[str, str]:
    both = findings.published_scores(groups), findings.by_model(groups)
    paper, here = (f"first on {findings.firsts(each)} of {len(each)} networks" for each in both)
    return f"{published.OURS} ends {paper}", f"{published.OURS} ends {here}"


def _short_fig1(groups: Sequence[RunGroup]) -> tuple[str, str]:
    records = spectra(groups[0])
    first, last = records[0]["statistics"], records[-1]["statistics"]
    return (
        "extreme eigenvalues become rarer, negative ones disappear",
        f"{len(first['outliers'])} → {len(last['outliers'])} isolated ones; the smallest "
        f"{first['lambda_min']:.3g} → {last['lambda_min']:.3g}, "
        f"the largest {first['lambda_max']:.3g} → {last['lambda_max']:.3g}",
    )


def _short_fig2(groups: Sequence[RunGroup]) -> tuple[str, str]:
    gains = list(findings.fig2_gains(groups))
    paper = "; ".join(f"{paper} on {panel}" for panel, paper, _ in gains)
    return f"LPSGD against SGD: {paper}", "; ".join(here for _, _, here in gains)


def _short_fig4(groups: Sequence[RunGroup]) -> tuple[str, str]:
    means = list(findings.mean_accuracies(groups).values())
    return (
        "accuracy does not rise monotonically with p_max",
        f"{findings.shape(means)} p_max".lower(),
    )


def _short_decay(groups: Sequence[RunGroup]) -> tuple[str, str]:
    versions = {group.label: group for group in groups}
    ((_, _, _, epoch, ratio, _, _),) = decay.summary_rows({"paper": versions["paper"].runs})
    return (
        "annealing p to 2 suits the curvature late in training",
        f"annealing also shortens the step, by a factor of {pages.factor(ratio)} up to epoch "
        f"{epoch}; accuracy with p kept at p_max minus the paper's: "
        f"{findings.against_paper(versions, 'constant-p')} points",
    )


SHORT: Mapping[str, tuple[str, Callable[[Sequence[RunGroup]], tuple[str, str]]]] = {
    "table1": ("[Table 1](#table-1-cifar-10), the paper's settings", _short_table),
    "table1-retuned": ("[Table 1](#table-1-cifar-10), learning rates retuned", _short_table),
    "table2": ("[Table 2](#table-2-cifar-100), the paper's settings", _short_table),
    "fig1": ("[Fig. 1](#fig-1-how-curvature-moves-during-training), SGD", _short_fig1),
    "fig1-lpsgdm": ("[Fig. 1](#fig-1-how-curvature-moves-during-training), LPSGDM", _short_fig1),
    "fig2": ("[Fig. 2](#fig-2-sgd-against-lpsgd)", _short_fig2),
    "fig4": ("[Fig. 4](#fig-4-the-effect-of-p_max)", _short_fig4),
    "decay": ("[The hidden decay](#the-hidden-decay-of-the-step)", _short_decay),
}
