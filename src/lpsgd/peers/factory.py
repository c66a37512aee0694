"""Making an optimizer for a model from its name and its settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lpsgd._suggest import unknown_name
from lpsgd.peers import registry
from lpsgd.peers.description import OptimizerSpec, load
from lpsgd.peers.grammar import is_import_path

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

P_SCHEDULES = ("cosine", "cosine-step", "linear", "constant", "linear-alpha")


@dataclass(frozen=True)
class Horizon:
    """How long training will be, for schedules that need to know."""

    total_steps: int
    steps_per_epoch: int
    total_epochs: int


def build(
    name: str,
    model: nn.Module,
    settings: Mapping[str, Any],
    *,
    total_steps: int,
    steps_per_epoch: int,
    total_epochs: int,
) -> Optimizer:
    """Make the optimizer for ``model``; a wrong value is a ValueError that names the optimizer."""
    from torch.optim import Optimizer

    spec = registry.get(name)
    values = registry.complete_settings(name, settings)
    horizon = Horizon(total_steps, steps_per_epoch, total_epochs)
    try:
        optimizer = _make(spec, model, values, horizon)
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f"optimizer {name!r} with {values}: {error}") from error
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"{name!r} made a {type(optimizer).__name__}, not a torch Optimizer")
    # **kwargs swallows misspelt names; one that was understood shows up among the defaults
    allowed = {*spec.settings, *optimizer.defaults}
    for key in values:
        if key not in allowed:
            raise ValueError(f"optimizer {name!r}: {unknown_name('setting', key, allowed)}")
    return optimizer


def _make(
    spec: OptimizerSpec, model: nn.Module, settings: Mapping[str, Any], horizon: Horizon
) -> Any:
    target = load(spec.target)
    values = {key: _argument(value) for key, value in settings.items()}
    if not is_import_path(spec.name) and "p_schedule" in values:
        values["p"] = make_p(values["p"], values.pop("p_schedule"), horizon)
    if spec.takes_total_steps:
        values["total_steps"] = horizon.total_steps
    return target(model.parameters() if inspect.isclass(target) else model, **values)


def _argument(value: Any) -> Any:
    """A list is given as a tuple; an import path, as SAM's ``base_optimizer``, as what it names."""
    if isinstance(value, str) and is_import_path(value):
        return load(value)
    return tuple(value) if isinstance(value, list) else value


def make_p(p: float, schedule: str, horizon: Horizon) -> Any:
    """Return what an l_p optimizer takes as ``p``: the number, or a schedule from it on."""
    import lpsgd
    from lpsgd import _checks as checks

    if not p < 0:  # past infinity: for the optimizer to judge, as not all have such an exponent
        checks.check_exponent("p", p)  # here, where it has the name that the user wrote
    if schedule == "constant":
        return p
    if schedule == "cosine":
        return lpsgd.CosineP(
            p, total_epochs=horizon.total_epochs, steps_per_epoch=horizon.steps_per_epoch
        )
    if schedule == "cosine-step":
        return lpsgd.CosineP(p, total_steps=horizon.total_steps)
    if schedule == "linear":
        return lpsgd.LinearP(p, total_steps=horizon.total_steps)
    if schedule == "linear-alpha":
        start = 1 / (p - 1) if p < 0 else 0.0  # from infinity on, or from past it
        return lpsgd.LinearAlpha(start, total_steps=horizon.total_steps)
    raise ValueError(unknown_name("p_schedule", str(schedule), P_SCHEDULES))


def try_out(name: str, settings: Mapping[str, Any], model: nn.Module | None = None) -> None:
    """Raise ValueError now for settings that `build` would reject later for ``model``.

    Without a model, a small one serves. A factory by import path may need the real one, so that
    only its names are checked.
    """
    registry.check_settings(name, settings)
    if model is None:
        if is_import_path(name) and not inspect.isclass(load(name)):
            return
        from torch import nn

        model = nn.Linear(2, 2)
    build(name, model, settings, total_steps=2, steps_per_epoch=1, total_epochs=2)
