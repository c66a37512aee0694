"""What a notebook shows: progress that is replaced, then the result with its curves."""

from __future__ import annotations

from pathlib import Path

import pytest

CELLS = (
    """
from functools import partial
import torch
from torch import nn
from lpsgd.lab import compare

x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long()

class Mine(torch.optim.SGD):
    pass
""",
    """
compare(
    [partial(Mine, lr=0.1), "adamw"], model=lambda: nn.Linear(4, 2), train=(x, y), test=(x, y),
    seeds=1, epochs=2, batch_size=16, out="runs",
)
""",
)


@pytest.mark.slow
def test_a_comparison_in_a_notebook(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = notebook.cells[1].outputs
    drawn = [output for output in outputs if output.output_type == "display_data"]
    (result,) = (output for output in outputs if output.output_type == "execute_result")
    assert len(drawn) == 1, "one output, which is replaced"
    assert "<svg" in result.data["text/html"]
    assert "Mine" in result.data["text/plain"]
    told = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "Mine seed 0: done" in told
