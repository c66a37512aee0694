"""The package as a user meets it: imports, documented examples, the README, the command's start."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lpsgd

ROOT = Path(__file__).parent.parent


def python(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_loads_neither_torch_nor_the_laboratory() -> None:
    code = "import sys, lpsgd; print([m for m in ('torch', 'lpsgd.lab') if m in sys.modules])"
    assert python(code) == "[]"


def test_the_optimizers_need_torch_alone() -> None:
    code = (
        "import sys; from lpsgd import *; "
        "print([m for m in ('lpsgd.lab', 'lpsgd.curvature', 'scipy', 'typer', 'pydantic', 'jax') "
        "if m in sys.modules])"
    )
    assert python(code) == "[]"


def test_public_names() -> None:
    for name in lpsgd.__all__:
        assert getattr(lpsgd, name).__doc__
    assert set(lpsgd.__all__) <= set(dir(lpsgd))
    with pytest.raises(AttributeError, match="module 'lpsgd' has no attribute 'Adam'"):
        _ = lpsgd.Adam


def test_one_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(lpsgd.__version__)}", changes, re.MULTILINE)


@pytest.mark.slow
def test_every_way_to_install_works_in_an_empty_environment(tmp_path: Path) -> None:
    """Wheel, clone, git URL, sdist and an extra, each used there: two idle minutes."""
    command = [sys.executable, "scripts/smoke.py", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    ways = 4 if (ROOT / ".git").exists() else 2
    assert done.stdout.count(f"lpsgd {lpsgd.__version__} works") == ways


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {lpsgd.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_quickstart_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    quickstart = importlib.import_module("quickstart")
    monkeypatch.setattr(quickstart, "EPOCHS", 1)
    monkeypatch.setattr(quickstart, "SEEDS", (0, 1))
    monkeypatch.setattr(quickstart, "LEARNING_RATES", {**quickstart.LEARNING_RATES})
    quickstart.main(["--lr", "3e-3"])
    assert quickstart.LEARNING_RATES["LPSGDM"] == 3e-3
    shown = capsys.readouterr().out
    for name in ("SGD", "AdamW", "LPSGDM", "test accuracy"):
        assert name in shown


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("typer", "needs the package 'typer': pip install 'lpsgd[lab]'"),
        ("fcntl", "needs Linux or macOS; on Windows run it in WSL"),
    ],
)
def test_the_command_says_what_it_lacks(missing: str, text: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from lpsgd.__main__ import main; "
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"lpsgd's command line {text}")
