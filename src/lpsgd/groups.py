"""Parameter groups: which parameters are decayed, and which kinds have settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from lpsgd._checks import non_negative


def param_groups(
    model: nn.Module,
    weight_decay: float = 0.0,
    *,
    no_decay: Callable[[str, nn.Parameter], bool] | None = None,
    muon: bool = False,
    embeddings: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    norms: Mapping[str, Any] | None = None,
    biases: Mapping[str, Any] | None = None,
    convolutions: Mapping[str, Any] | None = None,
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
        embeddings: settings of the weights of embeddings, in a group of their own, marked
            ``kind="embeddings"``; they come before all others. The same for the four kinds below,
            and None leaves a kind where it is.
        head: of weight and bias of the linear layer that is defined last.
        norms: of the parameters of normalisation layers (whose class has "norm" in its name).
        biases: of all other parameters that are named ``bias`` or end so.
        convolutions: of the kernels of convolutions.
        **settings: further settings for all groups, such as ``lr``.

    A parameter belongs to the first kind of this list that was given and fits it: a weight that
    embedding and head share is an embedding's, the bias of the head the head's.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    >>> [(g["weight_decay"], g["param_names"]) for g in param_groups(model, 0.1)]
    [(0.1, ['0.weight', '2.weight']), (0.0, ['0.bias', '1.weight', '1.bias', '2.bias'])]
    >>> [(g["use_muon"], g["param_names"]) for g in param_groups(model, 0.1, muon=True)][:2]
    [(True, ['0.weight']), (False, ['2.weight'])]
    >>> for group in param_groups(model, 0.1, lr=1e-2, head={"lr": 1e-3}, norms={"p": 2.0}):
    ...     print(group.get("kind"), group["lr"], group["weight_decay"], group["param_names"])
    None 0.01 0.1 ['0.weight']
    None 0.01 0.0 ['0.bias']
    norms 0.01 0.0 ['1.weight', '1.bias']
    head 0.001 0.1 ['2.weight']
    head 0.001 0.0 ['2.bias']
    """
    non_negative("weight_decay", weight_decay)
    own = {
        "embeddings": embeddings,
        "head": head,
        "norms": norms,
        "biases": biases,
        "convolutions": convolutions,
    }
    wanted = {kind: _mapping(kind, given) for kind, given in own.items() if given is not None}
    members = {kind: _members(kind, model) for kind in wanted}
    ends = _members("embeddings", model) | _members("head", model) if muon else set()
    groups: dict[tuple[float, bool, str], dict[str, nn.Parameter]] = {
        (weight_decay, True, ""): {},
        (weight_decay, False, ""): {},
        (0.0, False, ""): {},
    }
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            spared = parameter.ndim < 2 or (no_decay is not None and no_decay(name, parameter))
            inside = muon and parameter.ndim >= 2 and parameter not in ends
            kind = next((kind for kind in wanted if parameter in members[kind]), "")
            key = (0.0 if spared else weight_decay, inside, kind)
            groups.setdefault(key, {})[name] = parameter
    return [
        {
            "params": list(found.values()),
            "param_names": list(found),
            "weight_decay": decay,
            **({"use_muon": inside} if muon else {}),
            **settings,
            **({"kind": kind, **wanted[kind]} if kind else {}),
        }
        for (decay, inside, kind), found in groups.items()
        if found
    ]


def _mapping(kind: str, given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{kind} must be None or a dict of settings such as lr, got {given!r}")
    return given


def _members(kind: str, model: nn.Module) -> set[Tensor]:
    """The parameters of this kind, those of other kinds among them."""
    if kind == "head":
        head = _head(model)
        return set() if head is None else set(head.parameters())
    if kind == "biases":
        return {param for name, param in model.named_parameters() if name.endswith("bias")}
    modules = list(model.modules())
    if kind == "norms":
        found = [m for m in modules if "norm" in type(m).__name__.lower()]
        return {param for module in found for param in module.parameters(recurse=False)}
    if kind == "convolutions":
        return {m.weight for m in modules if isinstance(m, nn.modules.conv._ConvNd)}
    return {m.weight for m in modules if isinstance(m, nn.Embedding | nn.EmbeddingBag)}


def _head(model: nn.Module) -> nn.Linear | None:
    """The linear layer that is defined last."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None
