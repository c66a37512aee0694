"""The command line as a whole: what it shows before any command is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from lpsgd.lab.cli import app as cli
from lpsgd.lab.cli.options import with_recipe_options


def shown_text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed, without the frames and breaks of a terminal."""
    assert cli.main(list(arguments)) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_help_lists_every_command_with_the_first_words_of_its_own_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = shown_text(capsys, "--help").partition("Commands")[2]
    for name, summary in cli.COMMANDS.items():
        own = shown_text(capsys, name, "--help")
        assert f"{name} [OPTIONS]" in own
        assert f"{name} {summary}" in listed
        assert summary in own


def test_the_help_loads_no_command() -> None:
    code = (
        "import sys; from lpsgd.lab.cli import app; app.main(['--help']); "
        "print([m for m in sys.modules if m.startswith(('torch', 'pydantic', 'lpsgd.lab.cli'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['lpsgd.lab.cli', 'lpsgd.lab.cli.app']"


def test_a_misspelt_command_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "lines", "first"),
    [
        ("train", 90, "--optimizer --out --dataset --model --epochs --seed"),
        ("compare", 109, "--optimizers --seeds --reference --out --dataset --model --epochs"),
        ("sweep", 128, "--space --optimizers --trials --out --dataset --model --epochs"),
        ("suggest", 80, "--optimizer --steps --low --high --out --dataset --model --seed"),
        ("reproduce", 61, "--scale --models --out --list"),
        ("spectrum", 41, "--layerwise --checkpoints --curvature --out"),
    ],
)
def test_help_begins_with_what_matters_and_is_short(
    command: str,
    lines: int,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= lines
    panel = shown.partition("─ Options ─")[2].partition("╰")[0]
    assert re.findall(r"^│[ *]+(--[\w-]+)", panel, re.MULTILINE) == [*first.split(), "--help"]


def test_a_switch_is_shown_by_the_form_that_changes_something(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both forms work: a recipe file may have turned it on."""
    assert cli.main(["train", "--help"]) == 0
    shown = re.findall(
        r"--(?:no-)?(?:augment|compile|closure|create-graph)\b", capsys.readouterr().out
    )
    assert sorted(set(shown)) == ["--closure", "--compile", "--create-graph", "--no-augment"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["--no-augment", "--compile"], {"augment": False, "compile": True}),
        (["--augment", "--no-compile"], {"augment": True, "compile": False}),
    ],
)
def test_switches_reach_the_recipe(words: list[str], expected: dict[str, bool]) -> None:
    found: list[dict[str, Any]] = []

    @with_recipe_options()
    def command(given: dict[str, Any]) -> None:
        found.append(given)

    app = typer.Typer()
    app.command()(command)
    app(words, standalone_mode=False)
    assert found == [expected]
