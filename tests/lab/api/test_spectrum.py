"""`lpsgd.lab.spectrum` on runs of the user's own, against eigenvalues written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lpsgd.lab import spectrum, train
from lpsgd.lab.errors import UserError

from ..own.problems import numbers


def squared_error(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x).squeeze(-1) - y).square().mean()


def linear() -> nn.Module:
    return nn.Linear(6, 1)


@pytest.mark.parametrize("how", [{}, {"step": squared_error}], ids=["loss", "step"])
def test_the_largest_eigenvalue_of_least_squares(tmp_path: Path, how: dict[str, Any]) -> None:
    own: dict[str, Any] = {"model": linear, "train": numbers(), "test": numbers(40), **how}
    run = train("sgd", epochs=1, batch_size=32, out=tmp_path / "run", **own)
    x = torch.cat([numbers()[0], torch.ones(96, 1)], 1).double()
    expected = torch.linalg.eigvalsh(2 * x.T @ x / 96)
    # the objects are still held, or given again with the folder
    for found in (
        spectrum(run, curvature="lanczos=7"),
        spectrum(run.folder, curvature="lanczos=7", **own),
    ):
        assert found.rows[0]["lambda_max"] == pytest.approx(expected[-1].item(), rel=1e-4)
        assert found.rows[0]["lambda_min"] == pytest.approx(expected[0].item(), rel=1e-3)
    assert "<svg" in found._repr_html_()
    assert {path.name for path in found.write()} >= {"spectrum.csv", "density.svg"}
    with pytest.raises(UserError, match="given as Python objects"):
        spectrum(run.folder)
    with pytest.raises(UserError, match="not those of the run"):
        spectrum(run.folder, **{**own, "train": numbers(64)})
