"""How what was run is told to people who want to run it again."""

from __future__ import annotations

import sys

import pytest

from lpsgd.lab.store.command_line import command_line


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["/somewhere/bin/lpsgd", "compare", "--seeds", "3"], "lpsgd compare --seeds 3"),
        (["/somewhere/lpsgd/__main__.py", "train"], "lpsgd train"),
        (["scripts/mine.py", "a b"], "python mine.py 'a b'"),
        (["/somewhere/ipykernel_launcher.py", "-f", "x.json"], "a notebook"),
    ],
)
def test_what_was_run(monkeypatch: pytest.MonkeyPatch, arguments: list[str], shown: str) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert command_line() == shown
