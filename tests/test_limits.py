"""benchmarks/limits.py times the steps that it names, and docs/speed.md has its tables."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lpsgd import fused
from tests.oracles import lp

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    fused.unavailable() is not None, reason=f"no kernel: {fused.unavailable()}"
)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("limits")


def tensors() -> list[list[torch.Tensor]]:
    draws = torch.Generator().manual_seed(0)
    return [[torch.randn(1000, generator=draws)] for _ in range(3)]


@pytest.mark.parametrize(("mode", "normalize"), [(0, None), (1, "rms"), (2, "dual")])
def test_the_kernel_is_called_for_a_step_of_lpsgdm(limits: Any, mode: int, normalize: Any) -> None:
    own = tensors()
    (theta,), (g,), (m,) = [[t.double() for t in role] for role in own]
    limits.kernel_call(own, mode)()
    m = 0.9 * m + 0.1 * g
    expected = theta - 1e-3 * torch.from_numpy(lp.direction(m.numpy(), 6.0, 1e-8, normalize))
    torch.testing.assert_close(own[0][0].double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own[2][0].double(), m, rtol=1e-5, atol=1e-6)


def test_sgd_is_called_for_a_step_with_momentum(limits: Any) -> None:
    own = tensors()
    (theta,), (g,), (m,) = [[t.clone() for t in role] for role in own]
    limits.sgd_call(own)()
    torch.testing.assert_close(own[0][0], theta - 1e-3 * (0.9 * m + g))


def test_what_it_prints_fits_the_page(
    limits: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(limits.LEVELS, "beyond the cache", 2**17)
    assert limits.main(["--seconds", "0", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert all(row["largest relative error"] < 1e-5 for row in run["error"].values())
    speed = importlib.import_module("speed_tables")
    made, page = speed.limits_tables(run), (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    filled = speed.pages.fill_file(ROOT / "docs/speed.md", made, "speed_tables.py")
    number = r"\d[\d.e-]*"  # only they may differ from one run to the next
    assert re.sub(number, "0", filled) == re.sub(number, "0", page)
