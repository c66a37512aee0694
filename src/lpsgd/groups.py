"""Parameter groups: which parameters are decayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from lpsgd._checks import non_negative


def param_groups(
    model: nn.Module,
    weight_decay: float = 0.0,
    *,
    no_decay: Callable[[str, nn.Parameter], bool] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Two groups: matrices and kernels with ``weight_decay``, norms and biases without.

    A parameter of two or more dimensions is decayed; biases and the scales of normalisation layers
    have fewer. Parameters that need no gradient are left out, a shared one appears once, and an
    empty group is dropped. The groups carry the parameters' names (``param_names``).

    Args:
        model: the model whose parameters are grouped.
        weight_decay: the decay of the first group.
        no_decay: called with name and parameter; True exempts it too (embeddings, say).
        **settings: further settings for both groups, such as ``lr``.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    >>> [(g["weight_decay"], g["param_names"]) for g in param_groups(model, 0.1)]
    [(0.1, ['0.weight']), (0.0, ['0.bias', '1.weight', '1.bias'])]
    """
    non_negative("weight_decay", weight_decay)
    decayed: dict[str, nn.Parameter] = {}
    exempt: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            spared = parameter.ndim < 2 or (no_decay is not None and no_decay(name, parameter))
            (exempt if spared else decayed)[name] = parameter
    return [
        {
            "params": list(members.values()),
            "param_names": list(members),
            "weight_decay": decay,
            **settings,
        }
        for members, decay in ((decayed, weight_decay), (exempt, 0.0))
        if members
    ]
