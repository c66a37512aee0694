"""The optimizers to compare ours with, most of them the paper's; ``registry`` describes all.

>>> import torch
>>> from lpsgd.peers import Lion
>>> model = torch.nn.Linear(10, 1)
>>> optimizer = Lion(model.parameters(), lr=1e-4, weight_decay=0.1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lpsgd._lazy import lazily

if TYPE_CHECKING:
    from lpsgd.peers.cautious import CautiousAdamW as CautiousAdamW
    from lpsgd.peers.gsgd import GSGD as GSGD
    from lpsgd.peers.lion import Lion as Lion
    from lpsgd.peers.lionk import LionK as LionK
    from lpsgd.peers.powersgdm import PowerSGDM as PowerSGDM
    from lpsgd.peers.powerstep import PowerStep as PowerStep
    from lpsgd.peers.signsgd import SignSGD as SignSGD
    from lpsgd.peers.signum import Signum as Signum
    from lpsgd.peers.soap import SOAP as SOAP
    from lpsgd.peers.stacey import Stacey as Stacey

_HOMES = {
    "SignSGD": "signsgd",
    "Signum": "signum",
    "Lion": "lion",
    "LionK": "lionk",
    "GSGD": "gsgd",
    "Stacey": "stacey",
    "PowerSGDM": "powersgdm",
    "PowerStep": "powerstep",
    "CautiousAdamW": "cautious",
    "SOAP": "soap",
}

__all__ = [
    "GSGD",
    "SOAP",
    "CautiousAdamW",
    "Lion",
    "LionK",
    "PowerSGDM",
    "PowerStep",
    "SignSGD",
    "Signum",
    "Stacey",
]

if not TYPE_CHECKING:  # as in the package: a type checker should miss any other name
    __getattr__, __dir__ = lazily(__name__, _HOMES)
