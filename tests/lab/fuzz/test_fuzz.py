"""Every fuzzer for a second; `make fuzz MINUTES=60` runs them for as long as asked."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.lab.fuzz.fuzzers import FUZZERS, run_case

FEW = {"stored_files": 30, "checkpoints": 5, "command_lines": 60, "images": 200}
MANY = 20  # times as many


@pytest.mark.parametrize("times", [1, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUZZERS)
def test_whatever_the_input(
    name: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(times * FEW.get(name, 100)):
            run_case(name, seed, tmp_path)
