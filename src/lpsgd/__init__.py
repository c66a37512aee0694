"""l_p-norm steepest descent for PyTorch: drop-in optimizers whose norm exponent p is annealed.

>>> import torch
>>> from lpsgd import LPSGDM, CosineP
>>> model = torch.nn.Linear(10, 1)
>>> optimizer = LPSGDM(model.parameters(), lr=1e-2, p=CosineP(6, total_steps=1000))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lpsgd._lazy import lazily

if TYPE_CHECKING:
    from lpsgd.groups import param_groups as param_groups
    from lpsgd.muon import LPMuon as LPMuon
    from lpsgd.optimizer import LPSGD as LPSGD
    from lpsgd.optimizer import LPSGDM as LPSGDM
    from lpsgd.schedule import ConstantP as ConstantP
    from lpsgd.schedule import CosineP as CosineP
    from lpsgd.schedule import LinearAlpha as LinearAlpha
    from lpsgd.schedule import LinearP as LinearP
    from lpsgd.schedule import PScheduler as PScheduler

# Names are loaded on first use, so that the command line shows its help without loading torch.
_HOMES = {
    "LPMuon": "muon",
    "LPSGD": "optimizer",
    "LPSGDM": "optimizer",
    "CosineP": "schedule",
    "LinearP": "schedule",
    "ConstantP": "schedule",
    "LinearAlpha": "schedule",
    "PScheduler": "schedule",
    "param_groups": "groups",
}

__all__ = [
    "LPSGD",
    "LPSGDM",
    "ConstantP",
    "CosineP",
    "LPMuon",
    "LinearAlpha",
    "LinearP",
    "PScheduler",
    "param_groups",
]
__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker knows the names from above, and should miss any other
    __getattr__, __dir__ = lazily(__name__, _HOMES)
