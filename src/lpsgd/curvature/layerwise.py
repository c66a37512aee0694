"""Every measurement for parts of a network: the diagonal blocks of the Hessian, by module name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Concatenate, ParamSpec, TypeVar

from lpsgd.curvature.operator import HessianOperator
from lpsgd.geometry import gradient_density

Modules = str | Sequence[str] | Mapping[str, str]
P = ParamSpec("P")
R = TypeVar("R")


def layer_operators(
    operator: HessianOperator, modules: Modules = "*"
) -> dict[str, HessianOperator]:
    """One block for each module that owns parameters and whose name matches.

    Args:
        operator: over the whole network; the blocks share its data and graphs.
        modules: a pattern such as ``"layer1.*.conv?"`` or several of them; a mapping
            ``{label: pattern}`` joins all modules of a pattern into one block.
    """
    owners: dict[str, list[str]] = {}
    for name in operator.names:
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    if isinstance(modules, Mapping):
        groups = {label: _matching(owners, [pattern]) for label, pattern in modules.items()}
    else:
        patterns = [modules] if isinstance(modules, str) else list(modules)
        groups = {owner: [owner] for owner in _matching(owners, patterns)}
    return {
        label: operator.restrict(name for owner in group for name in owners[owner])
        for label, group in groups.items()
    }


def layerwise(
    measure: Callable[Concatenate[HessianOperator, P], R],
    operator: HessianOperator,
    modules: Modules = "*",
    *args: P.args,
    **options: P.kwargs,
) -> dict[str, R]:
    """Apply any measurement to each block: ``layerwise(trace, operator, "layer*", probes=8)``.

    Example:
        >>> import torch
        >>> from lpsgd.curvature import hessian_operator, trace
        >>> first, last = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
        >>> model = torch.nn.Sequential(first, torch.nn.Tanh(), last)
        >>> data = (torch.randn(8, 2), torch.randn(8, 1))
        >>> sorted(layerwise(trace, hessian_operator(model, torch.nn.MSELoss(), data), "*"))
        ['0', '2']
    """
    blocks = layer_operators(operator, modules)
    return {label: measure(block, *args, **options) for label, block in blocks.items()}


def gradient_densities(operator: HessianOperator, modules: Modules = "*") -> dict[str, float]:
    r"""The density :math:`\|g\|_1^2 / (d \|g\|_2^2)` of the gradient of each block.

    A proxy for anisotropy that costs no product; see :func:`lpsgd.geometry.gradient_density`.
    """
    return layerwise(overall_gradient_density, operator, modules)


def overall_gradient_density(operator: HessianOperator) -> float:
    """The gradient's density over all parameters of the operator."""
    return float(gradient_density(operator.gradient()))


def _matching(owners: Mapping[str, object], patterns: Sequence[str]) -> list[str]:
    found = [name for name in owners if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not found:
        raise ValueError(f"modules={patterns!r} matches none of {list(owners)}")
    return found
