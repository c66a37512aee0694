"""The public API as a type checker sees it from another project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lpsgd

USE = """
from typing import assert_type

import torch
from lpsgd import LPSGD, LPSGDM, ConstantP, CosineP, LinearAlpha, LinearP, PScheduler, param_groups

model = torch.nn.Linear(4, 2)
optimizer = LPSGDM(
    param_groups(model, 0.01),
    lr=torch.tensor(1e-3),
    p=CosineP(6, total_steps=100),
    normalize="rms",
    state_dtype=torch.bfloat16,
)
base: torch.optim.Optimizer = optimizer
assert_type(optimizer.step(), None)
assert_type(optimizer.step(lambda: 1.0), float)
assert_type(CosineP(6, total_steps=10)(3), float)
assert_type(LinearP(6, total_steps=10)(torch.tensor(3)), torch.Tensor)
LPSGD(model.named_parameters(), p=lambda step: 6.0)
LPSGD([{"params": [model.weight], "p": LinearAlpha(total_steps=5)}, {"params": [model.bias]}])
assert_type(PScheduler(LPSGD(model.parameters()), ConstantP(3)).get_last_p(), list[float])
"""

MISUSE = {
    'LPSGDM(model.parameters(), normalize="l2")': 'Argument "normalize"',
    'LPSGDM(model.parameters(), p="6")': 'Argument "p"',
    "LPSGDM(model.parameters(), lr=None)": 'Argument "lr"',
    "LPSGD(model.parameters(), momentum=0.9)": 'Unexpected keyword argument "momentum"',
    "CosineP(6, steps=3)": 'Unexpected keyword argument "steps"',
    "import lpsgd; lpsgd.Adam": 'Module has no attribute "Adam"',
}


def mypy(code: str, folder: Path) -> str:
    """What mypy --strict says of a program that uses the installed package."""
    program = folder / "program.py"
    program.write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11"]
    cache = ["--cache-dir", str(folder / "cache")]
    source = Path(lpsgd.__file__).parents[1]
    done = subprocess.run(
        [*command, *cache, str(program)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "MYPYPATH": "" if "site-packages" in str(source) else str(source)},
    )
    return done.stdout


def test_downstream_code_passes_strict_mypy_and_misuse_does_not(tmp_path: Path) -> None:
    """One run, because mypy reads torch's types for seconds."""
    program = USE + "\n".join(MISUSE) + "\n"
    errors = [line for line in mypy(program, tmp_path).splitlines() if ": error:" in line]
    first = USE.count("\n") + 1
    wrong = {int(line.split(":")[1]) - first: line for line in errors}
    assert all(number >= 0 for number in wrong), "\n".join(errors)
    assert len(wrong) == len(MISUSE), "\n".join(errors)
    for number, message in enumerate(MISUSE.values()):
        assert message in wrong[number]
