"""Every optimizer that can be named on the command line, as a frozen description.

Anything else is reached by its import path, ``package.module:Name``: a class that takes parameters
first, or a factory that takes the model. This module imports torch only when it builds one.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lpsgd._suggest import unknown_name

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_COMMA = re.compile(r",(?![^(\[]*[)\]])")  # not inside parentheses
P_SCHEDULES = ("cosine", "cosine-step", "linear", "constant", "linear-alpha")


@dataclass(frozen=True)
class Horizon:
    """How long training will be, for schedules that need to know."""

    total_steps: int
    steps_per_epoch: int
    total_epochs: int


Factory = Callable[["nn.Module", dict[str, Any], Horizon], "Optimizer"]


@dataclass(frozen=True)
class OptimizerSpec:
    """One optimizer: its rule, what can be set, what it keeps, where it comes from, how to make it.

    ``factory(model, settings, horizon)`` gets every setting. ``open_settings`` says that names
    outside ``settings`` may be right too (a class with ``**kwargs``).
    """

    name: str
    rule: str
    settings: Mapping[str, Any]
    state: str
    source: str
    factory: Factory
    needs_closure: bool = False
    create_graph: bool = False
    open_settings: bool = False
    required: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))


_SPECS: dict[str, OptimizerSpec] = {}


def register(spec: OptimizerSpec) -> OptimizerSpec:
    """Add a description; a name can be given once."""
    if spec.name in _SPECS:
        raise ValueError(f"an optimizer named {spec.name!r} is registered already")
    _SPECS[spec.name] = spec
    return spec


def names() -> list[str]:
    """Return the registered names, in the order of registration."""
    return list(_SPECS)


def is_import_path(name: str) -> bool:
    """Tell whether ``name`` looks like ``package.module:Name``."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name) is not None


def get(name: str) -> OptimizerSpec:
    """Return the description of a registered name or of an import path, which is imported."""
    if is_import_path(name):
        return _describe_import(name)
    try:
        return _SPECS[name]
    except KeyError:
        raise ValueError(unknown_name("optimizer", name, _SPECS)) from None


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``NAME`` or ``NAME:setting=value,...`` as written on the command line.

    >>> parse("lpsgdm:lr=1e-3,p=inf,p_schedule=constant")
    ('lpsgdm', {'lr': 0.001, 'p': inf, 'p_schedule': 'constant'})
    >>> parse("package.module:Name:betas=(0.9,0.99)")
    ('package.module:Name', {'betas': [0.9, 0.99]})
    """
    match = re.fullmatch(r"([\w.-]+(?::[A-Za-z_][\w.]*(?![\w.]*\s*=))?)(?::(.*))?", text.strip())
    if match is None:
        raise ValueError(
            f"cannot read the optimizer {text!r}: write NAME or NAME:setting=value,setting=value"
        )
    name, rest = match.groups()
    return name, parse_settings(rest) if rest else {}


def split_list(text: str) -> list[str]:
    """Split several optimizers; what looks like ``setting=value`` belongs to the one before it.

    >>> split_list("sgd,lpsgdm:lr=1e-3,p=6,adamw")
    ['sgd', 'lpsgdm:lr=1e-3,p=6', 'adamw']
    """
    found: list[str] = []
    for part in _COMMA.split(text):
        if found and ":" not in part.partition("=")[0] and "=" in part:
            found[-1] += f",{part.strip()}"
        elif part.strip():
            found.append(part.strip())
    return found


def parse_settings(text: str) -> dict[str, Any]:
    """Read ``setting=value,setting=value``; parentheses hold a list."""
    settings: dict[str, Any] = {}
    for part in _COMMA.split(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(f"cannot read the setting {part!r}: write setting=value")
        if key.strip() in settings:
            raise ValueError(f"the setting {key.strip()!r} is given twice in {text!r}")
        settings[key.strip()] = parse_value(value.strip())
    return settings


def parse_value(text: str) -> Any:
    """Read a number, true, false, none, a list in parentheses, or else a string."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith(("(", "[")) and text.endswith((")", "]")):
        return [parse_value(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that the optimizer lacks or whose type cannot be right."""
    spec = get(name)
    for key, value in settings.items():
        if key not in spec.settings:
            if spec.open_settings:
                continue
            raise ValueError(f"optimizer {name!r}: {unknown_name('setting', key, spec.settings)}")
        default = spec.settings[key]
        number = _is_number(default)
        if number and (not _is_number(value) or value != value):  # nan is no number either
            raise ValueError(f"optimizer {name!r}: {key}={value!r} is not a number")
        if isinstance(default, list) and not _alike(value, default):
            raise ValueError(f"optimizer {name!r}: {key}={value!r} is not {len(default)} numbers")
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ValueError(f"optimizer {name!r}: {key}={value!r} is not true or false")
    for key in spec.required:
        if key not in settings:
            raise ValueError(f"optimizer {name!r}: the setting {key!r} must be given")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alike(value: Any, numbers: list[float]) -> bool:
    """Tell whether ``value`` is a list of as many numbers."""
    listed = isinstance(value, list | tuple) and len(value) == len(numbers)
    return listed and all(_is_number(item) for item in value)


def complete_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings: the given ones over the registered defaults."""
    check_settings(name, settings)
    spec = get(name)
    if is_import_path(name):  # the class's own defaults are objects that a recipe cannot hold
        return dict(settings)
    return {**spec.settings, **settings}


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

    values = complete_settings(name, settings)
    horizon = Horizon(total_steps, steps_per_epoch, total_epochs)
    spec = get(name)
    try:
        optimizer = spec.factory(model, values, horizon)
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f"optimizer {name!r} with {values}: {error}") from error
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"{name!r} made a {type(optimizer).__name__}, not a torch Optimizer")
    _check_open_settings(spec, values, optimizer)
    return optimizer


def _check_open_settings(
    spec: OptimizerSpec, settings: Mapping[str, Any], optimizer: Optimizer
) -> None:
    # **kwargs swallows misspelt names; one that was understood shows up among the defaults
    for key in settings:
        if key not in spec.settings and key not in optimizer.defaults:
            allowed = {*spec.settings, *optimizer.defaults}
            raise ValueError(f"optimizer {spec.name!r}: {unknown_name('setting', key, allowed)}")


def try_out(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError now for settings that `build` would reject later.

    A factory by import path may need the real model, so only its names are checked.
    """
    check_settings(name, settings)
    if is_import_path(name) and not inspect.isclass(_import(name)):
        return
    from torch import nn

    build(name, nn.Linear(2, 2), settings, total_steps=2, steps_per_epoch=1, total_epochs=2)


def _describe_import(path: str) -> OptimizerSpec:
    target = _import(path)
    by_class = inspect.isclass(target)
    parameters = list(inspect.signature(target).parameters.values())
    if not parameters:
        raise ValueError(f"{path!r} takes no argument: it must take parameters or a model first")
    named = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

    def factory(model: nn.Module, settings: dict[str, Any], horizon: Horizon) -> Optimizer:
        values = {key: _resolve(value) for key, value in settings.items()}
        optimizer: Optimizer = target(model.parameters() if by_class else model, **values)
        return optimizer

    documentation = (inspect.getdoc(target) or "no description").strip().splitlines()[0]
    return OptimizerSpec(
        name=path,
        rule=documentation,
        settings={p.name: p.default for p in named},
        state="unknown",
        source=path.split(":")[0],
        factory=factory,
        open_settings=any(p.kind is p.VAR_KEYWORD for p in parameters),
        required=tuple(p.name for p in named if p.default is p.empty),
    )


def _import(path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    try:
        found = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        hint = ""
        if module_name in names():
            hint = f"; a setting of {module_name} is written {module_name}:setting=value"
        raise ValueError(f"cannot import {path!r}: {error}{hint}") from error
    if not callable(found):
        raise ValueError(f"{path!r} is a {type(found).__name__}, not a class or a function")
    return found


def _resolve(value: Any) -> Any:
    """A setting such as SAM's ``base_optimizer=torch.optim:SGD`` is an import path itself."""
    if isinstance(value, str) and is_import_path(value):
        return _import(value)
    return tuple(value) if isinstance(value, list) else value


def _class_factory(module: str, attribute: str) -> Factory:
    """Makes the class from its settings; p and its schedule's name become what it takes as p."""

    def factory(model: nn.Module, settings: dict[str, Any], horizon: Horizon) -> Optimizer:
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in settings.items()
        }
        if "p_schedule" in values:
            values["p"] = make_p(values["p"], values.pop("p_schedule"), horizon)
        kind = getattr(importlib.import_module(module), attribute)
        optimizer: Optimizer = kind(model.parameters(), **values)
        return optimizer

    return factory


def _decoupled_sgd(model: nn.Module, settings: dict[str, Any], horizon: Horizon) -> Optimizer:
    from lpsgd.peers.decoupled import SGDW

    values = dict(settings)
    return SGDW(model.parameters(), decoupled_decay=values.pop("weight_decay"), **values)


def _gradual(model: nn.Module, settings: dict[str, Any], horizon: Horizon) -> Optimizer:
    from lpsgd.peers import GSGD

    return GSGD(model.parameters(), total_steps=horizon.total_steps, **settings)


def make_p(p: float, schedule: str, horizon: Horizon) -> Any:
    """Return what an l_p optimizer takes as ``p``: the number, or a schedule from it on."""
    import lpsgd
    from lpsgd import _checks as checks

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
        return lpsgd.LinearAlpha(total_steps=horizon.total_steps)
    raise ValueError(unknown_name("p_schedule", str(schedule), P_SCHEDULES))


_LP = {"p": 6.0, "p_schedule": "cosine", "weight_decay": 0.0, "eps": 1e-8, "normalize": None}
_FIXED_P = {"p": 6.0, "p_schedule": "constant"}
_BETAS = {"betas": [0.9, 0.999], "eps": 1e-8}
_LION_BETAS = {"betas": [0.9, 0.99]}

for _spec in (
    OptimizerSpec(
        "lpsgd",
        "u = g/(|g|+eps)^rho; theta <- (1-lr*wd)*theta - lr*u; rho = (p-2)/(p-1), p annealed to 2",
        {"lr": 1e-3, **_LP},
        "none",
        "lpsgd (the paper's Algorithm 1)",
        _class_factory("lpsgd", "LPSGD"),
    ),
    OptimizerSpec(
        "lpsgdm",
        "m <- b*m + (1-b)*g; u = m/(|m|+eps)^rho; theta <- (1-lr*wd)*theta - lr*u; p annealed to 2",
        {"lr": 1e-3, "momentum": 0.9, **_LP},
        "1 x parameter",
        "lpsgd (the paper's Algorithm 2)",
        _class_factory("lpsgd", "LPSGDM"),
    ),
    OptimizerSpec(
        "signsgd",
        "theta <- (1-lr*wd)*theta - lr*sign(g)",
        {"lr": 1e-3, "weight_decay": 0.0},
        "none",
        "lpsgd.peers.SignSGD (Bernstein et al., 2018)",
        _class_factory("lpsgd.peers", "SignSGD"),
    ),
    OptimizerSpec(
        "signum",
        "m <- b*m + (1-b)*g; theta <- (1-lr*wd)*theta - lr*sign(m)",
        {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.Signum (Bernstein et al., 2018)",
        _class_factory("lpsgd.peers", "Signum"),
    ),
    OptimizerSpec(
        "lion",
        "u = sign(b1*m + (1-b1)*g); theta <- (1-lr*wd)*theta - lr*u; m <- b2*m + (1-b2)*g",
        {"lr": 1e-4, **_LION_BETAS, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.Lion (Chen et al., 2023)",
        _class_factory("lpsgd.peers", "Lion"),
    ),
    OptimizerSpec(
        "lionk",
        "c = b1*m + (1-b1)*g; u = sign(c)*(|c|/||c||_q)^alpha; theta and m as in lion",
        {"lr": 1e-4, **_LION_BETAS, **_FIXED_P, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.LionK (Chen et al., 2024)",
        _class_factory("lpsgd.peers", "LionK"),
    ),
    OptimizerSpec(
        "gsgd",
        "u = sign(g)*|g|^a, a = (t-1)/T; theta <- (1-lr*wd)*theta - lr*u",
        {"lr": 1e-3, "weight_decay": 0.0, "eps": 1e-8},
        "none",
        "lpsgd.peers.GSGD (the paper's Remark 1)",
        _gradual,
    ),
    OptimizerSpec(
        "stacey",
        "c = b1*m + (1-b1)*g; u = c/(|c|+eps)^rho; z <- z - dual_lr*c (p2) or its l_p form (pp); "
        "theta <- (1-tau-lr*wd)*theta + tau*z - lr*(1-tau)*u; m <- b2*m + (1-b2)*g",
        {
            "lr": 1e-3,
            **_LION_BETAS,
            **_FIXED_P,
            "tau": 1e-3,
            "dual_lr": 1e-3,
            "mode": "p2",
            "weight_decay": 0.0,
            "eps": 1e-8,
        },
        "2 x parameter",
        "lpsgd.peers.Stacey (Luo et al., 2025)",
        _class_factory("lpsgd.peers", "Stacey"),
    ),
    OptimizerSpec(
        "powersgdm",
        "d = sign(g)*|g|^gamma + wd*theta; m <- b*m + d; theta <- theta - lr*m",
        {"lr": 1e-3, "momentum": 0.9, "gamma": 0.5, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.PowerSGDM",
        _class_factory("lpsgd.peers", "PowerSGDM"),
    ),
    OptimizerSpec(
        "sgd",
        "g <- g + wd*theta; m <- b*m + g; theta <- theta - lr*m",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
        "1 x parameter",
        "torch.optim.SGD",
        _class_factory("torch.optim", "SGD"),
    ),
    OptimizerSpec(
        "sgdw",
        "m <- b*m + g; theta <- (1-lr*wd)*theta - lr*m",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
        "1 x parameter",
        "torch.optim.SGD with decoupled decay",
        _decoupled_sgd,
    ),
    OptimizerSpec(
        "adam",
        "g <- g + wd*theta; m, v <- averages of g, g^2; theta <- theta - lr*m^/(sqrt(v^)+eps)",
        {"lr": 1e-3, **_BETAS, "weight_decay": 0.0},
        "2 x parameter",
        "torch.optim.Adam",
        _class_factory("torch.optim", "Adam"),
    ),
    OptimizerSpec(
        "adamw",
        "m, v <- averages of g, g^2; theta <- (1-lr*wd)*theta - lr*m^/(sqrt(v^)+eps)",
        {"lr": 1e-3, **_BETAS, "weight_decay": 0.01},
        "2 x parameter",
        "torch.optim.AdamW",
        _class_factory("torch.optim", "AdamW"),
    ),
    OptimizerSpec(
        "adagrad",
        "g <- g + wd*theta; v <- v + g^2; theta <- theta - lr*g/(sqrt(v)+eps)",
        {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-10},
        "1 x parameter",
        "torch.optim.Adagrad",
        _class_factory("torch.optim", "Adagrad"),
    ),
    OptimizerSpec(
        "rmsprop",
        "g <- g + wd*theta; v <- a*v+(1-a)*g^2; m <- b*m + g/(sqrt(v)+eps); theta <- theta - lr*m",
        {"lr": 0.01, "alpha": 0.99, "momentum": 0.0, "weight_decay": 0.0, "eps": 1e-8},
        "1 x parameter (2 with momentum)",
        "torch.optim.RMSprop",
        _class_factory("torch.optim", "RMSprop"),
    ),
):
    register(_spec)
