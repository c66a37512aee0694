"""The examples run against the real libraries, each in a process of its own, offline.

Those of Hugging Face and Lightning train once without interruption and once stopped and resumed,
and compare the losses of the two exactly.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

from tests.test_examples import printed

# oneDNN takes instructions for bfloat16 that some virtual machines announce but do not have
OFFLINE = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    "OMP_NUM_THREADS": "1",
}


def needs(package: str, extra: str = "integrations") -> pytest.MarkDecorator:
    """Looks for the package without importing it, which takes seconds."""
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"needs pip install 'lpsgd[{extra}]'")


def check(output: str, runs: int = 1) -> None:
    """Each run has resumed exactly, and its loss has fallen."""
    assert output.count("the same losses: True") == runs
    pairs = re.findall(r"loss (\d+\.\d+) -> (\d+\.\d+)", output)
    assert len(pairs) == runs
    for first, last in pairs:
        assert float(last) < float(first)


@needs("transformers")
@pytest.mark.parametrize("arguments", [(), ("--bf16",)], ids=["float32", "bfloat16"])
def test_hugging_face_trainer(arguments: tuple[str, ...]) -> None:
    output = printed("hf_trainer.py", *arguments, environment=OFFLINE)
    check(output)
    assert "p at the end 2.0" in output


@needs("accelerate")
def test_accelerate() -> None:
    check(printed("accelerate_loop.py", environment=OFFLINE))


@needs("lightning")
def test_lightning() -> None:
    check(printed("lightning_module.py", environment=OFFLINE), runs=2)


@needs("jax", "optax")
def test_jax() -> None:
    output = printed("jax_loop.py", environment=OFFLINE)
    first, *_, last = (float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output))
    assert last < 0.5 * first


@pytest.mark.slow
@needs("transformers")
def test_own_model_huggingface(tmp_path: Path) -> None:
    """With random weights and unread labels it would be 50 %."""
    output = printed("own_model_huggingface.py", str(tmp_path), environment=OFFLINE)
    assert "make_model on own data: 3 optimizers, 2 seeds" in output
    best = re.search(r"Highest mean test accuracy: .* \((\d+\.\d+)\)", output)
    assert best is not None
    assert float(best[1]) > 90


@pytest.mark.slow
@needs("lightning")
def test_own_model_lightning(tmp_path: Path) -> None:
    output = printed("own_model_lightning.py", str(tmp_path), environment=OFFLINE)
    assert "Module on own data: 3 optimizers, 2 seeds" in output
    best = re.search(r"Lowest mean test mae: .* \((\d+\.\d+)\)", output)
    assert best is not None
    assert float(best[1]) < 0.7  # 0.9 for the mean of the targets
