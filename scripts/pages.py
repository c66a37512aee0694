"""What the scripts that write tables into pages share: marks, numbers in words, CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lpsgd.lab.analysis import stats


def fill(page: str, name: str, content: str, script: str) -> str:
    """The page with what stands between the marks of ``name`` replaced."""
    begin = f"<!-- {name}: python scripts/{script} -->\n"
    end = f"<!-- end of {name} -->"
    found = re.compile(re.escape(begin) + ".*?" + re.escape(end), flags=re.DOTALL)
    if len(found.findall(page)) != 1:
        raise SystemExit(f"the page has no one place marked for {name}")
    return found.sub(lambda _: begin + content + end, page)


def fill_file(path: Path, contents: dict[str, str], script: str) -> str:
    """The text of a page with all of ``contents`` in their places."""
    page = path.read_text(encoding="utf-8")
    for name, content in contents.items():
        page = fill(page, name, content, script)
    return page


def table(head: Sequence[str], body: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """Markdown, the first column to the left and the others, if they are numbers, to the right."""
    lines = [f"| {' | '.join(cells)} |\n" for cells in [head, *body]]
    rule = "|---|" + ("---:|" if numbers else "---|") * (len(head) - 1) + "\n"
    return "".join([lines[0], rule, *lines[1:]])


def csv_text(head: Sequence[str], body: Iterable[Sequence[Any]]) -> str:
    """Comma-separated values, with the same line ends everywhere."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_plain(value) for value in row] for row in body)
    return text.getvalue()


def _plain(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def factor(value: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{float(f'{value:.3g}'):,g}"


def signed(value: float, digits: int) -> str:
    """With its sign, a real minus; what rounds to zero is +0."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def interval(difference: float | None, low: float | None, high: float | None, digits: int) -> str:
    """A difference and the ends of its interval."""
    if difference is None:
        return ""
    bounds = (
        "" if low is None or high is None else f" ({signed(low, digits)} to {signed(high, digits)})"
    )
    return signed(difference, digits) + bounds


def mean_text(scores: stats.Summary, digits: int) -> str:
    """A mean and half of its interval."""
    assert scores.mean is not None
    half = "" if scores.high is None else f" ± {scores.high - scores.mean:.{digits}f}"
    return f"{scores.mean:.{digits}f}{half}"


def p_text(value: float | None) -> str:
    """A p value."""
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
