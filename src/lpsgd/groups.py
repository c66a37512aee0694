"""Parameter groups: which parameters are decayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lpsgd._checks import non_negative


def param_groups(
    model: nn.Module,
    weight_decay: float = 0.0,
    *,
    no_decay: Callable[[str, nn.Parameter], bool] | None = None,
    muon: bool = False,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Split the parameters by weight decay: matrices and kernels are decayed, norms and biases not.

    A parameter of two or more dimensions is decayed; biases and the scales of normalisation layers
    have fewer. Parameters that need no gradient are left out, a shared one appears once, and an
    empty group is dropped. The groups carry the parameters' names (``param_names``).

    Args:
        model: the model whose parameters are grouped.
        weight_decay: the decay of the first group.
        no_decay: called with name and parameter; True exempts it too (embeddings, say).
        muon: make the usual split for Muon and :class:`~lpsgd.LPMuon`: embeddings and the last
            linear layer (and what shares its weight with either) follow AdamW's rule, marked
            ``use_muon=False``, because their rows are tokens or classes, not directions in a space.
        **settings: further settings for all groups, such as ``lr``.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    >>> [(g["weight_decay"], g["param_names"]) for g in param_groups(model, 0.1)]
    [(0.1, ['0.weight', '2.weight']), (0.0, ['0.bias', '1.weight', '1.bias', '2.bias'])]
    >>> [(g["use_muon"], g["param_names"]) for g in param_groups(model, 0.1, muon=True)][:2]
    [(True, ['0.weight']), (False, ['2.weight'])]
    """
    non_negative("weight_decay", weight_decay)
    ends = _embeddings_and_head(model) if muon else set()
    groups: dict[tuple[float, bool], dict[str, nn.Parameter]] = {
        (weight_decay, True): {},
        (weight_decay, False): {},
        (0.0, False): {},
    }
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            spared = parameter.ndim < 2 or (no_decay is not None and no_decay(name, parameter))
            inside = muon and parameter.ndim >= 2 and parameter not in ends
            key = (0.0 if spared else weight_decay, inside)
            groups.setdefault(key, {})[name] = parameter
    return [
        {
            "params": list(members.values()),
            "param_names": list(members),
            "weight_decay": decay,
            **({"use_muon": inside} if muon else {}),
            **settings,
        }
        for (decay, inside), members in groups.items()
        if members
    ]


def _embeddings_and_head(model: nn.Module) -> set[Tensor]:
    """The weights of all embeddings, and of the linear layer that is defined last."""
    found: set[Tensor] = {
        m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)
    }
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return found | ({linear[-1].weight} if linear else set())
