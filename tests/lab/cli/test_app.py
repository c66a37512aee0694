"""The command line as a whole: what it shows before any command is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lpsgd.lab.cli import app as cli


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
