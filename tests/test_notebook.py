"""The notebook runs from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook.ipynb"


def test_it_is_kept_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs pip install 'lpsgd[test]'")
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert not any(cell.outputs or cell.execution_count for cell in code)


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs pip install 'lpsgd[test]'")
    nbclient = pytest.importorskip("nbclient", reason="needs pip install 'lpsgd[test]'")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path / "work"
    folder.mkdir()
    nbclient.NotebookClient(
        notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    shown = [
        output.data
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type in ("execute_result", "display_data")
    ]
    html = " ".join(data.get("text/html", "") for data in shown)
    assert "learning rate" in html, "the suggestion"
    assert "AdamW" in html or "adamw" in html, "the comparison"
    assert html.count("<svg") >= 2
    assert sum("image/png" in data for data in shown) >= 3
    assert not list(folder.iterdir())
