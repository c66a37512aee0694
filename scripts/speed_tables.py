"""Write the tables of docs/speed.md, docs/optimizers.md and the README from the benchmarks.

python scripts/speed_tables.py [--step FILE] [--all FILE] [--limits FILE]

FILE is what `step.py`, `step.py --all` or `limits.py` of benchmarks/ printed with --json, and then
only its tables are written. Without one all are run now, which takes minutes and wants a quiet
machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import pages  # noqa: E402

from lpsgd.lab.store.disk.files import write_text  # noqa: E402

BENCHMARKS = {"step": ["step.py"], "all": ["step.py", "--all"], "limits": ["limits.py"]}
PEER, OURS = "torch SGD fused", "LPSGDM fused"
NAMES = {
    "copy": "copy (each parameter overwritten by its gradient)",
    OURS: "**LPSGDM fused**",
    "LPSGDM fused, rms": 'LPSGDM fused, `normalize="rms"`',
    "LPSGDM fused, dual": 'LPSGDM fused, `normalize="dual"`',
    "LPSGD fused": "**LPSGD fused**",
    "LPSGDM compiled": "LPSGDM compiled by Inductor",
    "LPSGDM naive foreach": "LPSGDM written naively with foreach",
}
IN_README = (
    OURS,
    "LPSGDM fused, rms",
    "LPSGD fused",
    "torch AdamW fused",
    "torch SGD foreach",
    "Lion foreach",
    "LPSGDM foreach",
    "LPSGDM compiled",
    "LPSGDM naive foreach",
)
Rows = list[dict[str, Any]]


def number(value: float) -> str:
    """Three digits or two, as the size of the value asks."""
    return f"{value:.2f}" if value < 3 else f"{value:.1f}" if value < 20 else f"{value:.0f}"


def by_optimizer(rows: Rows) -> dict[str, dict[str, dict[str, Any]]]:
    """optimizer -> list of parameters -> its row"""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["list"] != "scaling":
            found.setdefault(row["optimizer"], {})[row["list"]] = row
    return found


def page_table(rows: Rows) -> str:
    found = by_optimizer(rows)
    sizes = {label: row["parameters"] / 1e6 for label, row in found[PEER].items()}
    head = ["", *[f"{label}, {size:.1f} M" for label, size in sizes.items()]]
    body = [
        [
            NAMES.get(name, name),
            *[f"{number(row['seconds'] * 1e3)} ({number(row['ratio'])})" for row in own.values()],
        ]
        for name, own in found.items()
    ]
    return pages.table(head, body)


def readme_table(rows: Rows) -> str:
    found = by_optimizer(rows)
    labels = [label for label in found[PEER] if "cache" not in label]
    body = []
    for name in (name for name in IN_README if name in found):
        temporary = found[name][labels[0]]["temporary"]
        memory = f"{temporary:.0f} bytes a parameter"
        if temporary < 0.5:  # parts of a few megabytes, however large the model
            memory = "none" if temporary < 0.01 else "a few megabytes in all"
        ratios = [number(found[name][label]["ratio"]) for label in labels]
        body.append([NAMES.get(name, name), *ratios, memory])
    return pages.table(["", *labels, "temporary memory"], body)


def scaling_table(rows: Rows) -> str:
    sizes: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["list"] == "scaling":
            own = sizes.setdefault(row["parameters"], {})
            own[row["optimizer"]] = row["seconds"] * 1e9 / row["parameters"]
    names = ["copy", PEER, OURS, "torch AdamW fused"]
    body = [
        [f"{size:.0e}".replace("e+0", "e"), *[f"{own[name]:.2f}" for name in names]]
        + [number(own[OURS] / own[other]) for other in (PEER, "torch AdamW fused")]
        for size, own in sizes.items()
    ]
    return pages.table(["parameters", *names, "LPSGDM / SGD", "LPSGDM / AdamW"], body)


def targets_table(targets: list[list[Any]]) -> str:
    body = [[what, number(reached), f"{bound:g}"] for what, reached, bound in targets]
    return pages.table(["", "measured", "target"], body)


def number_table(table: dict[str, dict[str, float]], digits: int) -> str:
    """A table of benchmarks/limits.py."""
    body = [
        [NAMES.get(name, name), *[f"{value:.{digits}f}" for value in row.values()]]
        for name, row in table.items()
    ]
    return pages.table(["", *next(iter(table.values()))], body)


def limits_tables(run: dict[str, Any]) -> dict[str, str]:
    """The blocks of the section that says where the time goes."""
    errors = {name: row["largest relative error"] for name, row in run["error"].items()}
    worst = [f"{error:.1e} ({name})".replace("e-0", "e-") for name, error in errors.items()]
    return {
        "kernel": f"{machine(run)}\n\n{number_table(run['kernel'], 2)}",
        "python": number_table(run["python"], 0),
        "operators": number_table(run["operators"], 2),
        "error": f"Largest relative error of a step, p from 2 to inf: {'; '.join(worst)}.\n",
    }


def all_table(run: dict[str, Any]) -> dict[str, str]:
    """Every registered optimizer."""
    head = ["optimizer", "ms a step", "ratio", "state, bytes a parameter", "temporary"]
    body = [
        [row["optimizer"], f"{row['seconds'] * 1e3:.1f}", f"{row['ratio']:.2f}"]
        + [f"{row[name]:.1f}" for name in ("state", "temporary")]
        for row in run["rows"]
    ]
    return {"all": f"{machine(run)}\n\n{pages.table(head, body)}"}


def machine(run: dict[str, Any]) -> str:
    found = ", ".join(f"{key}: {value}" for key, value in run["about"].items() if key != "load")
    return f"Measured with {found}."


def step_tables(run: dict[str, Any]) -> dict[str, str]:
    """The other blocks of the page."""
    return {
        "step": f"{machine(run)}\n\n{page_table(run['rows'])}",
        "scaling": scaling_table(run["rows"]),
        "targets": targets_table(run["targets"]),
    }


def measured(benchmark: Sequence[str], file: Path | None) -> dict[str, Any]:
    """What a benchmark printed into a file, or prints now."""
    if file is None:
        name, *options = benchmark
        command = [sys.executable, str(ROOT / "benchmarks" / name), *options, "--json"]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    else:
        text = file.read_text(encoding="utf-8")
    return dict(json.loads(text))


def write(path: Path, tables: dict[str, str]) -> None:
    write_text(path, pages.fill_file(path, tables, Path(__file__).name))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, benchmark in BENCHMARKS.items():
        parser.add_argument(f"--{name}", type=Path, help=f"what {' '.join(benchmark)} printed")
    given = vars(parser.parse_args())
    asked = [name for name, file in given.items() if file is not None] or list(BENCHMARKS)
    for name in asked:
        run, docs = measured(BENCHMARKS[name], given[name]), ROOT / "docs"
        if name == "step":
            write(docs / "speed.md", step_tables(run))
            write(ROOT / "README.md", {"step": readme_table(run["rows"])})
        elif name == "all":
            write(docs / "optimizers.md", all_table(run))
        else:
            write(docs / "speed.md", limits_tables(run))


if __name__ == "__main__":
    main()
