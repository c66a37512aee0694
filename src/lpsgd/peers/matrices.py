"""LPMuon and Muon for a whole model: who goes by singular values, and who by AdamW's rule.

Embeddings, the last linear layer, biases and norms follow AdamW (``param_groups(muon=True)``). All
groups have the same decay: what is decayed is for the recipe to say, for every optimizer alike.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from lpsgd.groups import param_groups
from lpsgd.muon import LPMuon
from lpsgd.schedule import PFunction


def lpmuon(
    model: nn.Module,
    *,
    lr: float = 2e-2,
    momentum: float = 0.95,
    p: float | PFunction = math.inf,
    weight_decay: float = 0.0,
    nesterov: bool = True,
    cautious: bool = True,
    normalize_rows: bool = True,
) -> LPMuon:
    """LPMuon for ``model``, with embeddings and the last layer apart."""
    return LPMuon(
        _split(model),
        lr=lr,
        momentum=momentum,
        p=p,
        weight_decay=weight_decay,
        nesterov=nesterov,
        cautious=cautious,
        normalize_rows=normalize_rows,
    )


def muon(
    model: nn.Module,
    *,
    lr: float = 2e-2,
    momentum: float = 0.95,
    weight_decay: float = 0.0,
    nesterov: bool = True,
) -> LPMuon:
    r"""Muon (Jordan et al., 2024) with an exact polar factor.

    .. math::
        \theta_{t+1} = (1 - \eta\lambda)\,\theta_t - 0.2\,\eta \sqrt{\max(r, c)}\; U V^T

    for the singular value decomposition of Nesterov's momentum, at the scale of Liu et al. (2025)
    that gives a step the root mean square of AdamW's.
    """
    return lpmuon(
        model,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        nesterov=nesterov,
        cautious=False,
        normalize_rows=False,
    )


def _split(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups, without names, so that others without names can be added."""
    marks: dict[bool, list[Any]] = {True: [], False: []}
    for group in param_groups(model, muon=True):
        marks[group["use_muon"]] += group["params"]
    return [{"params": params, "use_muon": mark} for mark, params in marks.items() if params]
