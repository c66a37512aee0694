"""Publish the paper's results at CPU scale: docs/results/paper and the page docs/results.md.

python scripts/publish_paper.py

Draws what the runs in results/cpu say and trains nothing: of a target whose runs are not all there
the page says how many are missing. `lpsgd reproduce TARGET --scale cpu --out results/cpu` trains
them. The same runs give the same files.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import pages  # noqa: E402

from lpsgd.lab.paper.choices import read_choices  # noqa: E402
from lpsgd.lab.paper.protocol import RunGroup, Setup, load_runs  # noqa: E402
from lpsgd.lab.paper.scales import get_scale, model_names  # noqa: E402
from lpsgd.lab.paper.tables import published  # noqa: E402
from lpsgd.lab.paper.targets import PlannedTarget, draw, plan_target  # noqa: E402
from lpsgd.lab.report.document import Document, to_markdown, write_document  # noqa: E402
from lpsgd.lab.store.disk.files import write_text  # noqa: E402

PAGE = ROOT / "docs/results.md"
RESULTS = ROOT / "docs/results/paper"
RUNS = ROOT / "results/cpu"
# What is published, and of which networks: Fig. 1 and Fig. 4 have panels of ImageNet besides.
TARGETS: Mapping[str, str | None] = {
    "table1": None,
    "table2": None,
    "fig1": "resnet18",
    "fig2": None,
    "fig4": "resnet18",
    "decay": None,
    "claims": None,
}


def planned(name: str, runs: Path = RUNS) -> PlannedTarget:
    """A target at CPU scale, with the runs of this repository."""
    scale = get_scale("cpu")
    models = model_names(TARGETS[name])
    return plan_target(name, Setup(scale, read_choices(()), runs, models, scale.seeds))


def command(name: str) -> str:
    """What trains and draws a target."""
    only = f" --models {TARGETS[name]}" if TARGETS[name] else ""
    return f"lpsgd reproduce {name} --scale cpu{only} --out results/cpu"


def section(name: str, document: Document) -> str:
    """A document as a part of the page: headings below the page's, files in their folder."""
    text = re.sub(r"^#", "###", to_markdown(document), flags=re.MULTILINE)
    text = re.sub(r"\]\((?!https?:)([^)]+)\)", rf"](results/paper/{name}/\1)", text)
    return f"`{command(name)}`\n\n{text}\n"


def orders(groups: Sequence[RunGroup]) -> str:
    """The optimizers of each network by their last accuracy: the paper's, and these runs'."""
    body = []
    for model in dict.fromkeys(group.model for group in groups):
        own = [group for group in groups if group.model == model]
        paper = {group.label: _published(group) for group in own}
        here = {group.label: statistics.mean(_final(group)) for group in own}
        body.append([model, _order(paper), _order(here)])
    return pages.table(["network", "the paper's order, accuracy in %", "the order here"], body)


def _published(group: RunGroup) -> float:
    last = published.checkpoints(group.dataset)[-1]
    return published.result(group.dataset, group.model, group.label, "test_top1", last).mean


def _final(group: RunGroup) -> Iterator[float]:
    for run in group.runs:
        score = run.history[-1].test_top1 if run.history else None
        if score is not None:
            yield score


def _order(scores: Mapping[str, float]) -> str:
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    return ", ".join(f"{label} {scores[label]:.1f}" for label in ranked)


def contents(runs: Path = RUNS) -> tuple[dict[str, str], dict[str, Document]]:
    """What stands between the marks of the page, and the documents of what is whole."""
    texts: dict[str, str] = {}
    documents: dict[str, Document] = {}
    for name in TARGETS:
        plan = planned(name, runs)
        if missing := plan.missing():
            texts[name] = (
                f"Not run to its end yet: {len(missing)} of {len(plan.tasks)} runs are missing. "
                f"`{command(name)}` trains them.\n"
            )
            continue
        documents[name] = draw(plan)
        texts[name] = section(name, documents[name])
        if name.startswith("table"):
            texts[name] += f"\n{orders(load_runs(plan.groups))}\n"
    return texts, documents


def main() -> None:
    """Write page, figures and tables."""
    texts, documents = contents()
    for name, document in documents.items():
        write_document(document, RESULTS / name)
    write_text(PAGE, pages.fill_file(PAGE, texts, Path(__file__).name))
    print(f"published: {', '.join(documents)}; the others miss runs")


if __name__ == "__main__":
    main()
