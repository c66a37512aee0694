"""The site: every block of Python runs, every picture is what the code draws, and it builds."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INCLUDE = re.compile(r'--8<-- "(.+)"\n')


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom, in one namespace. A page may write where the reader stands."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if not INCLUDE.fullmatch(block):  # an example, which has its own test
            exec(compile(block, page.name, "exec"), names)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_scripts_of_the_site_are_bash() -> None:
    texts = "\n".join(page.read_text() for page in PAGES)
    scripts = re.findall(r"^```(?:ba)?sh\n(#!.*?)^```", texts, re.DOTALL | re.MULTILINE)
    assert len(scripts) == 2  # torchrun and Ray on Slurm
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_every_example_is_on_the_site_and_has_a_test() -> None:
    included = {
        Path(path).name
        for page in PAGES
        for block in blocks(page)
        for path in INCLUDE.findall(block)
    }
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert {"hf_trainer.py", "lightning_module.py", "jax_loop.py"} <= included <= examples
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in examples:
        assert re.search(rf"\b{name.removesuffix('.py')}\b", tests), f"no test names {name}"


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe", reason="needs pip install 'lpsgd[docs]'")
    spec = importlib.util.spec_from_file_location("rst", ROOT / "scripts/rst_docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    rst = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rst)
    text = "See :class:`~lpsgd.CosineP`, :math:`a\n  b`.\n\n.. math::\n    x &= 1\n\n>>> f()\n1\n"
    assert rst.to_markdown(text) == (
        "See `CosineP`, \\(a b\\).\n\n\n\\[\n\\begin{align*}\nx &= 1\n\\end{align*}\n\\]\n\n"
        "```pycon\n>>> f()\n1\n```\n"
    )


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs pip install 'lpsgd[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "api/index.html").read_text()
    for name in ("LPSGDM", "CosineP", "PScheduler", "lp_direction"):
        assert f'id="lpsgd.{name}"' in reference or f'id="lpsgd.geometry.{name}"' in reference
    assert "lpsgdm" in (tmp_path / "api-optax/index.html").read_text()
    assert "optimizer_cls_and_kwargs=(" in re.sub(
        "<[^>]*>", "", (tmp_path / "integrations/index.html").read_text()
    )


def test_the_pictures_can_be_drawn_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/draw_docs.py", str(tmp_path)], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (ROOT / "docs/images").glob("*.svg")}
