"""Publish the paper's results at CPU scale: docs/results/paper and the page docs/results.md.

python scripts/publish_paper.py [--compute]

Draws what the runs in results/cpu say and trains nothing: of a target whose runs are not all there
the page says how many are missing. `lpsgd reproduce TARGET --scale cpu --out results/cpu` trains
them. The same runs give the same files. The check of the theory has no runs and takes minutes: it
is computed anew with --compute alone, and its page is otherwise the one that is kept.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import pages  # noqa: E402
import paper_findings as findings  # noqa: E402
import paper_short  # noqa: E402
from paper_shapes import shapes  # noqa: E402

from lpsgd.lab.formatting import duration  # noqa: E402
from lpsgd.lab.paper.choices import read_choices  # noqa: E402
from lpsgd.lab.paper.protocol import RunGroup, Setup, load_runs  # noqa: E402
from lpsgd.lab.paper.scales import get_scale, model_names  # noqa: E402
from lpsgd.lab.paper.tables import published  # noqa: E402
from lpsgd.lab.paper.targets import PlannedTarget, draw, plan_target  # noqa: E402
from lpsgd.lab.report.document import Document, to_markdown, write_document  # noqa: E402
from lpsgd.lab.report.source import trained_with  # noqa: E402
from lpsgd.lab.store.disk.files import write_text  # noqa: E402

PAGE = ROOT / "docs/results.md"
RESULTS = ROOT / "docs/results/paper"
RUNS = ROOT / "results/cpu"


@dataclass(frozen=True)
class Entry:
    """A target as it is published: of which networks, and with which answers to open questions."""

    target: str
    models: str | None = None
    choices: tuple[str, ...] = ()


def searched() -> str:
    """The networks whose learning rates were searched again."""
    rates = published.retuned_rates()
    return ",".join(dict.fromkeys(published.MODELS[rate.model] for rate in rates))


# Fig. 1 and Fig. 4 have panels of ImageNet besides.
ENTRIES: Mapping[str, Entry] = {
    "table1": Entry("table1"),
    "table1-retuned": Entry("table1", searched(), ("settings=retuned",)),
    "table2": Entry("table2"),
    "fig1": Entry("fig1", "resnet18"),
    "fig1-lpsgdm": Entry("fig1", "resnet18", ("fig1-optimizer=lpsgdm",)),
    "fig2": Entry("fig2"),
    "fig4": Entry("fig4", "resnet18"),
    "decay": Entry("decay"),
    "theory": Entry("theory"),
    "claims": Entry("claims"),
}
COMPUTED = ("theory",)
TABLES: Mapping[str, Mapping[str, str]] = {
    "table1": {"table1": "the paper's settings", "table1-retuned": "retuned learning rates"},
    "table2": {"table2": "the paper's settings"},
}
SENTENCES: Mapping[str, Callable[[Sequence[RunGroup]], str]] = {
    **{
        name: partial(findings.table_sentence, how=how)
        for versions in TABLES.values()
        for name, how in versions.items()
    },
    "fig1": findings.fig1_sentence,
    "fig1-lpsgdm": findings.fig1_sentence,
    "fig2": findings.fig2_sentence,
    "fig4": findings.fig4_sentence,
    "decay": findings.decay_sentence,
}


def planned(name: str, runs: Path = RUNS) -> PlannedTarget:
    """An entry at CPU scale, with the runs of this repository."""
    entry, scale = ENTRIES[name], get_scale("cpu")
    choices, models = read_choices(entry.choices), model_names(entry.models)
    return plan_target(entry.target, Setup(scale, choices, runs, models, scale.seeds))


def command(name: str) -> str:
    """What trains and draws an entry."""
    entry = ENTRIES[name]
    only = f" --models {entry.models}" if entry.models else ""
    chosen = "".join(f" --choose {choice}" for choice in entry.choices)
    return f"lpsgd reproduce {entry.target} --scale cpu{only}{chosen} --out results/cpu"


def section(name: str, markdown: str, groups: Sequence[RunGroup] = ()) -> str:
    """A document as a part of the page, after what it tells: headings below the page's."""
    text = re.sub(r"^#", "###", markdown, flags=re.MULTILINE)
    text = re.sub(r"\]\((?!https?:)([^)]+)\)", rf"](results/paper/{name}/\1)", text)
    found = f"{SENTENCES[name](groups)}\n\n" if name in SENTENCES else ""
    return f"{found}`{command(name)}`{trained(groups)}\n\n{text}\n"


def trained(groups: Sequence[RunGroup]) -> str:
    """How long the runs trained, on one thread each, and with which versions."""
    runs = [run for group in groups for run in group.runs]
    parts = f"{duration(training_time(groups))} of training on one core", trained_with(runs)
    return f" ({'; '.join(part for part in parts if part)})" if runs else ""


def training_time(groups: Sequence[RunGroup]) -> float:
    """Seconds of all runs, each at the median of its network: some waited for other work."""
    networks: dict[tuple[str, str], list[float]] = {}
    for group in groups:
        for run in group.runs:
            if run.history:
                times = networks.setdefault((group.dataset, group.model), [])
                times.append(sum(each or 0.0 for each in run.values("seconds")))
    return sum(statistics.median(times) * len(times) for times in networks.values())


def missing(plan: PlannedTarget, name: str) -> str:
    """How many runs an entry lacks, as a sentence; empty if it is whole."""
    if count := len(plan.missing()):
        return (
            f"Not run to its end yet: {count} of {len(plan.tasks)} runs are missing. "
            f"`{command(name)}` trains them.\n"
        )
    return ""


def retuned_edges() -> str:
    """Whose best learning rate was the lowest or the highest of those tried."""
    tried: dict[tuple[str, str], list[float]] = {}
    with (RESULTS / "retuned/trials.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            tried.setdefault((row["model"], row["optimizer"]), []).append(float(row["lr"]))
    found = []
    for rate in published.retuned_rates():
        own = tried[rate.model, rate.optimizer]
        if rate.lr in (min(own), max(own)):
            found.append(f"{rate.optimizer} on {rate.model} ({rate.lr:g})")
    if not found:
        return "No best learning rate is the lowest or the highest of its five."
    return (
        "The lowest or the highest of its five is the best learning rate of "
        f"{', '.join(found)}: another one might be better."
    )


def contents(runs: Path = RUNS) -> tuple[dict[str, str], dict[str, Document]]:
    """What stands between the marks of the page, and the documents of what is whole."""
    texts: dict[str, str] = {}
    documents: dict[str, Document] = {}
    groups: dict[str, list[RunGroup]] = {}
    for name in COMPUTED:
        kept = (RESULTS / name / f"{name}.md").read_text(encoding="utf-8")
        texts[name] = section(name, kept)
    for name in (each for each in ENTRIES if each not in COMPUTED):
        plan = planned(name, runs)
        if lack := missing(plan, name):
            texts[name] = lack
            continue
        groups[name] = load_runs(plan.groups)
        documents[name] = draw(plan)
        texts[name] = section(name, to_markdown(documents[name]), groups[name])
    for name, entries in TABLES.items():
        versions = {how: groups[each] for each, how in entries.items() if each in groups}
        whole = name in groups
        texts[f"{name}-orders"] = findings.orders(versions) if whole else ""
        texts[f"{name}-shapes"] = shapes(versions, planned(name).setup) if whole else ""
    texts["short"] = paper_short.short(groups)
    searches = [groups[name] for name in TABLES["table1"] if name in groups]
    misled = f" {findings.misled(*searches)}" if len(searches) == 2 else ""
    texts["retuned-search"] = f"{retuned_edges()}{misled}\n"
    return texts, documents


def main() -> None:
    """Write page, figures and tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compute", action="store_true", help="the check of the theory too")
    if parser.parse_args().compute:
        for name in COMPUTED:
            write_document(draw(planned(name)), RESULTS / name)
    texts, documents = contents()
    for name, document in documents.items():
        write_document(document, RESULTS / name)
    write_text(PAGE, pages.fill_file(PAGE, texts, Path(__file__).name))
    print(f"published: {', '.join(sorted((*documents, *COMPUTED)))}")
    if lacking := ENTRIES.keys() - documents.keys() - set(COMPUTED):
        print(f"runs are missing of: {', '.join(sorted(lacking))}")


if __name__ == "__main__":
    main()
