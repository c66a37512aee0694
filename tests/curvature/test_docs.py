"""The examples in docs/curvature.md run."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_page_runs_from_top_to_bottom():
    page = Path(__file__).parents[2] / "docs" / "curvature.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 8
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert [record["epoch"] for record in names["records"]] == [0, 2, 4]
