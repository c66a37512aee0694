"""Whose state dict is this? Told by its keys, so that another optimizer's is never loaded.

torch loads any state dict of the right shape: the settings of both are then mixed, and the buffers
of one are read as, or kept beside, those of the other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# How a step is run and how buffers are kept: no setting of the rule.
_NO_SIGN = frozenset(
    {"params", "foreach", "fused", "capturable", "differentiable", "maximize"}
    | {"state_dtype", "p_schedule", "decoupled_weight_decay"}
)
# What files of older versions of the package lack.
_LATER = frozenset({"eps", "normalize"})
# What so many optimizers have that it distinguishes none.
_COMMON = frozenset({"lr", "weight_decay", "momentum", "betas"})


def refuse_foreign_state(
    optimizer: Optimizer,
    file: Mapping[str, Any],
    settings: Collection[str],
    groups: Sequence[Mapping[str, Any]],
    buffers: Sequence[Collection[str]] | None = None,
) -> None:
    """Raise ValueError if ``file`` is not a state dict of an optimizer with these settings.

    Settings that a user has added to a group, or that an older version did not have yet, make no
    difference; a class without momentum and one with ``momentum=0`` are the same.

    Args:
        optimizer: what the file is to be loaded into.
        file: the state dict.
        settings: the names of the optimizer's settings.
        groups: the optimizer's groups; what they hold besides the settings is a user's own.
        buffers: for each group of the file the names of its buffers; None if they are not known.
    """
    saved: list[Mapping[str, Any]] = file.get("param_groups", [])
    signs = frozenset(settings) - _NO_SIGN
    reasons: list[str] = []
    for group, own in zip(saved, groups, strict=False):
        reasons.extend(_differences(group, own, signs))
    if buffers is not None and signs - _LATER <= _COMMON:
        for group, names in zip(saved, buffers, strict=False):
            states = [file.get("state", {}).get(key, {}) for key in group["params"]]
            reasons.extend(_foreign_buffers(states, frozenset(names)))
    if reasons:
        name = type(optimizer).__name__
        raise ValueError(
            f"this state dict looks like one of {_author(saved[0], name)}, and this optimizer is "
            f"{name} ({', '.join(dict.fromkeys(reasons))}). Nothing was loaded: the numbers of one "
            "mean something else to the other. To continue from that checkpoint load only the "
            f"weights of the model, and start with a new optimizer {name}"
        )


def _differences(
    group: Mapping[str, Any], own: Mapping[str, Any], signs: frozenset[str]
) -> Iterator[str]:
    """How a group of the file differs from one of this optimizer, in words."""
    missing = signs - _LATER - group.keys()
    if own.get("momentum") == 0:
        missing -= {"momentum"}
    foreign = (group.keys() & _vocabulary()) - own.keys() - _NO_SIGN
    if group.get("momentum") == 0:
        foreign -= {"momentum"}
    yield from (f"it has the setting {name!r}" for name in sorted(foreign))
    yield from (f"it lacks the setting {name!r}" for name in sorted(missing))


def _foreign_buffers(states: list[Mapping[str, Any]], names: frozenset[str]) -> Iterator[str]:
    """The buffers that are not this optimizer's, where its own are not all there."""
    for state in states:
        held = {name for name, value in state.items() if isinstance(value, Tensor)} - {"step"}
        if not names or not names <= held:
            yield from (f"it has the buffer {name!r}" for name in sorted(held - names))


def _author(group: Mapping[str, Any], refuser: str) -> str:
    """The known optimizers whose settings are those of ``group`` but for one, or "another"."""
    if "lp_step" in group:
        return "LpGradient"
    keys = group.keys() & _vocabulary()
    distances = {name: len((keys ^ settings) - _NO_SIGN) for name, settings in _known().items()}
    least = min(distances.values())
    nearest = [name for name, distance in distances.items() if distance == least <= 1]
    return " or ".join(name for name in nearest if name != refuser) or "another optimizer"


def _vocabulary() -> frozenset[str]:
    """Every name of a setting of a known optimizer."""
    return frozenset().union(*_known().values())


@functools.cache
def _known() -> Mapping[str, frozenset[str]]:
    """The settings of torch's optimizers, by their constructors, and of the package's own."""
    import lpsgd
    from lpsgd import peers
    from lpsgd._base import LpOptimizer
    from lpsgd.transform import LpGradient

    known = {
        cls.__name__: frozenset(inspect.signature(cls).parameters)
        for cls in vars(torch.optim).values()
        if inspect.isclass(cls) and issubclass(cls, Optimizer) and cls is not Optimizer
    }
    for home in (lpsgd, peers):
        for thing in [getattr(home, name) for name in home.__all__]:
            if inspect.isclass(thing) and issubclass(thing, LpOptimizer):
                known[thing.__name__] = frozenset(thing._checks)
    known["SGDW"] = known["SGD"] | {"decoupled_decay"}
    known["LpGradient"] = frozenset(LpGradient._checks)
    return known
