"""Every optimizer that can be named on the command line, as data.

Anything else is reached by its import path, ``package.module:Name``. No optimizer is imported
before it is made, so reading the registry does not load torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpsgd._suggest import unknown_name
from lpsgd.peers.description import OptimizerSpec, describe
from lpsgd.peers.grammar import is_import_path

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


def get(name: str) -> OptimizerSpec:
    """Return the description of a registered name or of an import path, which is imported."""
    if is_import_path(name):
        try:
            return describe(name)
        except ValueError as error:
            module = name.partition(":")[0]
            if module in _SPECS:
                hint = f"a setting of {module} is written {module}:setting=value"
                raise ValueError(f"{error}; {hint}") from error
            raise
    try:
        return _SPECS[name]
    except KeyError:
        raise ValueError(unknown_name("optimizer", name, _SPECS)) from None


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


_LP = {"p": 6.0, "p_schedule": "cosine", "weight_decay": 0.0, "eps": 1e-8, "normalize": None}
_FIXED_P = {"p": 6.0, "p_schedule": "constant"}
_BETAS = {"betas": [0.9, 0.999], "eps": 1e-8}
_LION_BETAS = {"betas": [0.9, 0.99]}
_MUON = {"lr": 2e-2, "momentum": 0.95, "weight_decay": 0.0, "nesterov": True}

for _spec in (
    OptimizerSpec(
        "lpsgd",
        "u = g/(|g|+eps)^rho; theta <- (1-lr*wd)*theta - lr*u; rho = (p-2)/(p-1), p annealed to 2",
        {"lr": 1e-3, **_LP},
        "none",
        "lpsgd (the paper's Algorithm 1)",
        "lpsgd:LPSGD",
    ),
    OptimizerSpec(
        "lpsgdm",
        "m <- b*m + (1-b)*g; u = m/(|m|+eps)^rho; theta <- (1-lr*wd)*theta - lr*u; p annealed to 2",
        {"lr": 1e-3, "momentum": 0.9, **_LP},
        "1 x parameter",
        "lpsgd (the paper's Algorithm 2)",
        "lpsgd:LPSGDM",
    ),
    OptimizerSpec(
        "lpmuon",
        "m <- b*m + (1-b)*g; u = 0.2*sqrt(max(r,c))*U*(S/rms(S))^(1/(p-1))*V' of b*m + (1-b)*g = "
        "U*S*V'; rows of u over their running rms; coordinates against g left out; theta <- "
        "(1-lr*wd)*theta - lr*u; vectors, embeddings and the last layer as in adamw",
        {
            **_MUON,
            "p": float("inf"),
            "p_schedule": "constant",
            "cautious": True,
            "normalize_rows": True,
        },
        "1 x parameter of matrices and a number for each row, 2 x parameter of the rest",
        "lpsgd.LPMuon (Schatten-p; cautious as Liang et al., 2024, rows as NorMuon)",
        "lpsgd.peers.matrices:lpmuon",
    ),
    OptimizerSpec(
        "signsgd",
        "theta <- (1-lr*wd)*theta - lr*sign(g)",
        {"lr": 1e-3, "weight_decay": 0.0},
        "none",
        "lpsgd.peers.SignSGD (Bernstein et al., 2018)",
        "lpsgd.peers:SignSGD",
    ),
    OptimizerSpec(
        "signum",
        "m <- b*m + (1-b)*g; theta <- (1-lr*wd)*theta - lr*sign(m)",
        {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.Signum (Bernstein et al., 2018)",
        "lpsgd.peers:Signum",
    ),
    OptimizerSpec(
        "lion",
        "u = sign(b1*m + (1-b1)*g); theta <- (1-lr*wd)*theta - lr*u; m <- b2*m + (1-b2)*g",
        {"lr": 1e-4, **_LION_BETAS, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.Lion (Chen et al., 2023)",
        "lpsgd.peers:Lion",
    ),
    OptimizerSpec(
        "lionk",
        "c = b1*m + (1-b1)*g; u = sign(c)*(|c|/||c||_q)^alpha; theta and m as in lion",
        {"lr": 1e-4, **_LION_BETAS, **_FIXED_P, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.LionK (Chen et al., 2024)",
        "lpsgd.peers:LionK",
    ),
    OptimizerSpec(
        "gsgd",
        "u = sign(g)*|g|^a, a = (t-1)/T; theta <- (1-lr*wd)*theta - lr*u",
        {"lr": 1e-3, "weight_decay": 0.0, "eps": 1e-8},
        "none",
        "lpsgd.peers.GSGD (the paper's Remark 1)",
        "lpsgd.peers:GSGD",
        takes_total_steps=True,
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
        "lpsgd.peers:Stacey",
    ),
    OptimizerSpec(
        "powersgdm",
        "d = sign(g)*|g|^gamma + wd*theta; m <- b*m + d; theta <- theta - lr*m",
        {"lr": 1e-3, "momentum": 0.9, "gamma": 0.5, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.PowerSGDM",
        "lpsgd.peers:PowerSGDM",
    ),
    OptimizerSpec(
        "powerstep",
        "m <- b*m + g; u = sign(m)*|m|^power; theta <- (1-lr*wd)*theta - lr*u",
        {"lr": 1e-3, "momentum": 0.9, "power": 0.1, "weight_decay": 0.0},
        "1 x parameter",
        "lpsgd.peers.PowerStep (Lu et al., 2026)",
        "lpsgd.peers:PowerStep",
    ),
    OptimizerSpec(
        "muon",
        "m <- b*m + (1-b)*g; u = 0.2*sqrt(max(r,c))*U*V' of b*m + (1-b)*g = U*S*V'; theta <- "
        "(1-lr*wd)*theta - lr*u; vectors, embeddings and the last layer as in adamw",
        _MUON,
        "1 x parameter of matrices, 2 x parameter of the rest",
        "lpsgd.LPMuon at p = inf (Jordan et al., 2024; its scale: Liu et al., 2025)",
        "lpsgd.peers.matrices:muon",
    ),
    OptimizerSpec(
        "soap",
        "L, R <- averages of g*g', g'*g; Q_L, Q_R: their eigenvectors, turned every 10 steps; "
        "adamw in the coordinates Q_L'*g*Q_R; vectors as in adamw; the first step only measures",
        {"lr": 3e-3, "betas": [0.95, 0.95], "eps": 1e-8, "weight_decay": 0.01, "every": 10},
        "2 x parameter, and 2 x the square of each dimension of matrices and kernels",
        "lpsgd.peers.SOAP (Vyas et al., 2024)",
        "lpsgd.peers:SOAP",
    ),
    OptimizerSpec(
        "sgd",
        "g <- g + wd*theta; m <- b*m + g; theta <- theta - lr*m",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
        "1 x parameter",
        "torch.optim.SGD",
        "torch.optim:SGD",
    ),
    OptimizerSpec(
        "sgdw",
        "m <- b*m + g; theta <- (1-lr*wd)*theta - lr*m",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
        "1 x parameter",
        "torch.optim.SGD with decoupled decay",
        "lpsgd.peers.sgdw:SGDW",
    ),
    OptimizerSpec(
        "adam",
        "g <- g + wd*theta; m, v <- averages of g, g^2; theta <- theta - lr*m^/(sqrt(v^)+eps)",
        {"lr": 1e-3, **_BETAS, "weight_decay": 0.0},
        "2 x parameter",
        "torch.optim.Adam",
        "torch.optim:Adam",
    ),
    OptimizerSpec(
        "adamw",
        "m, v <- averages of g, g^2; theta <- (1-lr*wd)*theta - lr*m^/(sqrt(v^)+eps)",
        {"lr": 1e-3, **_BETAS, "weight_decay": 0.01},
        "2 x parameter",
        "torch.optim.AdamW",
        "torch.optim:AdamW",
    ),
    OptimizerSpec(
        "cadamw",
        "m, v <- averages of g, g^2; u = m^/(sqrt(v^)+eps); f = (u*g > 0); "
        "theta <- (1-lr*wd)*theta - lr*u*f/mean(f)",
        {"lr": 1e-3, **_BETAS, "weight_decay": 0.01},
        "2 x parameter",
        "lpsgd.peers.CautiousAdamW (Liang et al., 2024)",
        "lpsgd.peers:CautiousAdamW",
    ),
    OptimizerSpec(
        "nadamw",
        "m, v <- averages of g, g^2; theta <- (1-lr*wd)*theta - lr*n/(sqrt(v^)+eps), n: "
        "m and g mixed as Nesterov's momentum, with b1 rising to its value",
        {
            "lr": 2e-3,
            **_BETAS,
            "weight_decay": 0.01,
            "momentum_decay": 4e-3,
            "decoupled_weight_decay": True,
        },
        "2 x parameter",
        "torch.optim.NAdam with decoupled decay (Dozat, 2016)",
        "torch.optim:NAdam",
    ),
    OptimizerSpec(
        "adagrad",
        "g <- g + wd*theta; v <- v + g^2; theta <- theta - lr*g/(sqrt(v)+eps)",
        {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-10},
        "1 x parameter",
        "torch.optim.Adagrad",
        "torch.optim:Adagrad",
    ),
    OptimizerSpec(
        "rmsprop",
        "g <- g + wd*theta; v <- a*v+(1-a)*g^2; m <- b*m + g/(sqrt(v)+eps); theta <- theta - lr*m",
        {"lr": 0.01, "alpha": 0.99, "momentum": 0.0, "weight_decay": 0.0, "eps": 1e-8},
        "1 x parameter (2 with momentum)",
        "torch.optim.RMSprop",
        "torch.optim:RMSprop",
    ),
):
    register(_spec)
