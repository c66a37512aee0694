"""A step on a device never asks the host to wait, and sends it one small copy at most.

On the meta device a tensor has no values: whatever looks at one raises, as ``.item()`` does.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lpsgd import LPSGD, LPSGDM, CosineP, LPMuon

META = torch.device("meta")


class Copies(TorchDispatchMode):
    """Counts what is moved between the host and the device."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in (*args, result) if isinstance(t, Tensor)]
        if len({t.device for t in tensors}) > 1 and ("copy" in str(function)):
            self.moved.append(str(function))
        return result


CASES: dict[str, Any] = {
    "LPSGD": lambda params: LPSGD(params, p=CosineP(6, total_steps=9), capturable=True),
    "LPSGDM": lambda params: LPSGDM(params, p=CosineP(6, total_steps=9), capturable=True),
    "rms": lambda params: LPSGDM(
        params, p=CosineP(6, total_steps=9), capturable=True, normalize="rms"
    ),
    "dual": lambda params: LPSGDM(
        params, p=CosineP(6, total_steps=9), capturable=True, normalize="dual"
    ),
    "bfloat16": lambda params: LPSGDM(params, p=4.0, capturable=True, state_dtype=torch.bfloat16),
    "foreach": lambda params: LPSGDM(params, p=CosineP(6, total_steps=9)),
    "LPMuon": lambda params: LPMuon(params, p=CosineP(6, total_steps=9), capturable=True),
    "LPMuon, by numbers": lambda params: LPMuon(params, p=CosineP(6, total_steps=9)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_value_is_looked_at_and_little_is_copied(name: str) -> None:
    params = [
        torch.empty(shape, device=META, requires_grad=True) for shape in ((8, 6), (8, 6), (5,))
    ]
    optimizer = CASES[name](params)
    for param in params:
        param.grad = torch.empty_like(param)
    optimizer.step()  # makes the state
    with Copies() as copies:
        optimizer.step()
    assert len(copies.moved) <= 1, copies.moved


def test_a_look_would_be_seen() -> None:
    with pytest.raises(RuntimeError, match="item"):
        torch.empty((), device=META).item()
    with Copies() as copies:
        torch.ones(3).to(META)
    assert len(copies.moved) == 1
