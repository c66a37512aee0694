"""bf16 and fp16: they train, and where the processor cannot, that is said before it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lpsgd.lab.errors import UserError
from lpsgd.lab.training import precision
from lpsgd.lab.training.loop import train
from tests.lab.small_runs import metrics, small_recipe

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget_probes() -> None:
    precision.probe.cache_clear()


def test_a_processor_that_kills_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr(precision, "_PROBE", die)
    with pytest.raises(UserError) as caught:
        train(small_recipe(precision="bf16"), tmp_path / "run")
    for part in ("--precision bf16", "SIGILL", "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16", "fp32"):
        assert part in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_precision_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_PROBE", "raise RuntimeError('no such kernel')")
    with pytest.raises(UserError, match="no such kernel"):
        precision.require("fp16", CPU)


def test_fp32_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "probe", lambda dtype: "broken")
    precision.require("fp32", CPU)
    precision.require("bf16", torch.device("cuda"))


@pytest.mark.slow
def test_the_real_probe_foretells_what_happens(tmp_path: Path) -> None:
    """`lpsgd train --precision bf16` never dies of a signal: it trains or says why not."""
    for isa in (None, "AVX512_CORE_BF16"):
        environment = {k: v for k, v in os.environ.items() if k != "ONEDNN_MAX_CPU_ISA"}
        environment |= {"ONEDNN_MAX_CPU_ISA": isa} if isa else {}
        command = [sys.executable, "-m", "lpsgd", "train", "--precision", "bf16"]
        command += ["--model", "resnet18", "--width", "8", "--epochs", "1", "--train-size", "128"]
        command += ["--optimizer", "lpsgdm", "--out", str(tmp_path / str(isa))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 2), done.stderr
        assert done.returncode != -signal.SIGILL
        if done.returncode == 2:
            assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in done.stderr
        else:
            assert metrics(tmp_path / str(isa))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_half_precision_trains_nearly_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # a perceptron: matrix products work in half precision on every processor of the tests
    monkeypatch.setattr(precision, "probe", lambda dtype: None)
    monkeypatch.setattr("torch.backends.mkldnn.enabled", False, raising=False)
    train(small_recipe("lpsgdm:lr=1e-2"), tmp_path / "full")
    train(small_recipe("lpsgdm:lr=1e-2", precision=name), tmp_path / "half")
    full, half = metrics(tmp_path / "full")[-1], metrics(tmp_path / "half")[-1]
    assert half["train_nll"] != full["train_nll"]
    assert half["train_nll"] == pytest.approx(full["train_nll"], rel=0.02)
    assert half["grad_norm"] == pytest.approx(full["grad_norm"], rel=0.1), "unscaled before use"
