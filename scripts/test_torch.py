"""Run the library's tests on another torch, and write what came of it into docs/versions.md.

    python scripts/test_torch.py 2.6.0

makes a virtual environment of its own for that torch and the Python that runs this, and leaves it
there for the next time. The laboratory's tests are not among them: see pyproject.toml for the torch
that it needs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "versions.md"
# the laboratory, other people's libraries, and what is about this checkout rather than about torch
LEFT_OUT = ["lab", "test_screening.py", "test_study.py", "test_results.py", "test_notebook.py"]
LEFT_OUT += ["integrations", "test_docs.py", "test_examples.py", "test_typing.py"]
LEFT_OUT += ["test_prose.py", "test_limits.py"]
TOOLS = ["hypothesis", "pytest", "pytest-xdist", "pytorch_optimizer", "setuptools>=77", "wheel"]
ROW = re.compile(r"^\| *(\d[^|]*?) *\| *(\d[^|]*?) *\| *(\d+) *\| *(\d+) *\| *(\d+) *\|\n", re.M)


def environment(version: str, folder: Path) -> Path:
    """The Python of an environment with this torch, and with what the tests import."""
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    if not (folder / ".ready").exists():
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        optional = extras["optional-dependencies"]
        needed = [*optional["curvature"], *optional["lab"], *TOOLS]
        others = [name for name in needed if not re.match("torch|lpsgd", name)]
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([*pip, f"torch=={version}"], check=True)
        subprocess.run([*pip, *others], check=True)
        without = ["--no-deps", "-r", str(ROOT / "requirements-no-deps.txt")]
        subprocess.run([*pip, *without], check=True)
        (folder / ".ready").touch()
    # builds the kernel; the torch that is there may be older than the one that pip would ask for
    editable = ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    subprocess.run([*pip, *editable], check=True)
    return python


def run_tests(python: Path, workers: str) -> dict[str, int]:
    """How many tests passed, failed and were skipped."""
    ignored = [f"--ignore=tests/{name}" for name in LEFT_OUT]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [
            "-m",
            "not slow",
            "-k",
            "not lpsgd.lab",  # the examples in its docstrings
            "-n",
            workers,
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        command = [str(python), "-m", "pytest", *options, *ignored, "tests"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        suite = ET.parse(report).getroot()[0]
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return {"passed": passed, "failed": failed, "skipped": counts["skipped"]}


def versions(python: Path) -> tuple[str, str]:
    """Those of torch and Python."""
    code = "import platform, torch; print(torch.__version__, platform.python_version())"
    shown = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    torch, own = shown.stdout.split()
    return torch, own


def write_row(page: Path, torch: str, python: str, counts: dict[str, int]) -> None:
    """Put the row into the page's table, in the place of one of the same versions."""
    text = page.read_text()
    rows = {(row[0], row[1]): row[2:] for row in ROW.findall(text)}
    rows[torch, python] = tuple(str(counts[name]) for name in ("passed", "failed", "skipped"))

    def order(key: tuple[str, str]) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", " ".join(key).replace("+cpu", ""))]

    table = "".join(
        "| " + " | ".join([*key, *rows[key]]) + " |\n" for key in sorted(rows, key=order)
    )
    head, rest = re.split(r"(?<=\|---:\|\n)", ROW.sub("", text), maxsplit=1)
    page.write_text(head + table + rest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("torch", help="a version such as 2.6.0")
    parser.add_argument("--venv", type=Path, help="the folder of the environment")
    parser.add_argument("--workers", default="2", help="processes that run tests")
    options = parser.parse_args()
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = options.venv or ROOT / ".venv-torch" / f"{options.torch}-python{own}"
    python = environment(options.torch, folder)
    counts = run_tests(python, options.workers)
    write_row(PAGE, *versions(python), counts)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
