"""Write the cost of every target of the paper into the page of docs/ that has the marks for it.

python scripts/cost_table.py [--timing]

The figures come from the estimate of `lpsgd reproduce --list`. Without --timing the last column,
the hours on this machine, is kept as it stands in the page.
"""

from __future__ import annotations

import argparse
import heapq
import re
from collections.abc import Sequence
from pathlib import Path

from lpsgd.lab.execution.local import default_jobs
from lpsgd.lab.formatting import duration
from lpsgd.lab.paper.choices import read_choices
from lpsgd.lab.paper.estimate import estimate, time_one
from lpsgd.lab.paper.protocol import Setup, all_tasks
from lpsgd.lab.paper.scales import get_scale, model_names
from lpsgd.lab.paper.targets import TARGETS, Target
from lpsgd.lab.store.disk.files import write_text

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- costs: python scripts/cost_table.py -->\n", "<!-- end of costs -->"
GPUS = 8
COLUMNS = (
    "target",
    "runs",
    "FLOPs",
    "1 x A100",
    "1 x H100",
    f"{GPUS} x A100",
    "FLOPs at cpu scale",
    "two cores at cpu scale",
)


def options(scale: str) -> Setup:
    size = get_scale(scale)
    return Setup(size, read_choices(()), Path("out"), model_names(None), size.seeds)


def row(target: Target, *, timing: bool, known: str) -> list[str]:
    """The cells of one target; ``known`` is the last one as it was."""
    paper, small = options("paper"), options("cpu")
    groups, small_groups = target.plan(paper), target.plan(small)
    tasks, reduced = all_tasks(groups), all_tasks(small_groups)
    if not tasks:
        return [f"`{target.name}`", "none", *[""] * (len(COLUMNS) - 2)]
    measured = target.hessian_images(paper, groups)
    whole = {
        gpu: estimate(tasks, paper.scale, hessian_images=measured, gpu=gpu)
        for gpu in ("A100", "H100")
    }
    hours = whole["A100"].gpu_hours
    each = [estimate([task], paper.scale, gpu="A100").gpu_hours for task in tasks]
    at_once = hours if target.name == "fig1" else side_by_side(each)  # fig1: one after the other
    cells = [f"`{target.name}`", str(len(tasks)), f"{whole['A100'].flops:.2g}"]
    cells += [_hours(hours), _hours(whole["H100"].gpu_hours), _hours(at_once)]
    jobs = 1 if target.name == "fig1" else default_jobs(reduced[0])
    timer = time_one if timing else None
    found = estimate(
        reduced,
        small.scale,
        hessian_images=target.hessian_images(small, small_groups),
        seconds_per_image=timer,
        jobs=jobs,
    )
    if found.machine_hours is not None:
        known = duration(3600 * found.machine_hours)
    return [*cells, f"{found.flops:.2g}", known]


def side_by_side(hours: Sequence[float]) -> float:
    """Hours until the last of these runs ends, each on the GPU that is free first."""
    free = [0.0] * GPUS
    for run in hours:
        heapq.heapreplace(free, free[0] + run)
    return max(free)


def _hours(count: float) -> str:
    return f"{count:.0f} h" if count >= 10 else f"{count:.1f} h"


def make_table(page: str, *, timing: bool) -> str:
    """The table in Markdown."""
    known = dict(re.findall(r"^\| (`\w+`) .*\| (.*?) \|$", between(page), re.MULTILINE))
    rows = [
        row(target, timing=timing, known=known.get(f"`{target.name}`", ""))
        for target in TARGETS.values()
    ]
    lines = [COLUMNS, ["---", *["---:"] * (len(COLUMNS) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def between(page: str) -> str:
    return page.partition(BEGIN)[2].partition(END)[0]


def find_page() -> Path:
    (page,) = [path for path in sorted(DOCS.glob("*.md")) if BEGIN in path.read_text()]
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--timing", action="store_true", help="time this machine (some minutes)")
    asked = parser.parse_args()
    path = find_page()
    page = path.read_text()
    before, _, after = page.partition(BEGIN)
    table = make_table(page, timing=asked.timing)
    write_text(path, f"{before}{BEGIN}{table}{END}{after.partition(END)[2]}")


if __name__ == "__main__":
    main()
