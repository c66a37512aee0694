"""Traces, norms and diagonals from products with random vectors, each with its standard error.

Any measurement can also be made of parts of a network: the diagonal blocks of the Hessian, chosen
by module names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import nan, sqrt
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from lpsgd.curvature.hessian import HessianOperator
from lpsgd.curvature.lanczos import (
    Eigenpairs,
    Krylov,
    SymmetricOperator,
    dimension,
    probe_generator,
)
from lpsgd.geometry import gradient_density

Modules = str | Sequence[str] | Mapping[str, str]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Estimate:
    """A mean over independent probes; one probe alone has no standard error (nan)."""

    value: float
    standard_error: float

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class VectorEstimate:
    """A flat vector of means with the standard error of each entry."""

    value: Tensor
    standard_error: Tensor


def trace(
    operator: SymmetricOperator,
    probes: int = 32,
    *,
    deflate: int | Eigenpairs = 0,
    seed: int = 0,
) -> Estimate:
    r"""The trace by Hutchinson's estimator, :math:`\operatorname{tr} A = E[v^\top A v]`.

    :math:`v` has independent entries ±1; the variance is :math:`2 \sum_{i \ne j} A_{ij}^2`.
    With an orthonormal :math:`Q` and :math:`P = I - QQ^\top`,
    :math:`\operatorname{tr} A = \operatorname{tr}(Q^\top A Q) + E[(Pv)^\top A (Pv)]`: the first
    term is exact, and where :math:`Q` holds the large eigenvectors the second has little variance.

    Args:
        operator: an operator or a symmetric tensor.
        probes: random vectors, one product each.
        deflate: the eigenvectors to take out, from :func:`top_eigenvalues`; or a number m: the
            space of m Lanczos steps (m products), which holds the outermost eigenvectors.
        seed: of the probes.

    Example:
        >>> import torch
        >>> trace(torch.diag(torch.tensor([1.0, 2.0, 3.0])), probes=2)  # exact for a diagonal
        Estimate(value=6.0, standard_error=0.0)
    """
    space = _Deflation(operator, deflate, seed)
    samples = [
        float(torch.dot(probe.double(), image.double())) for probe, image in space.products(probes)
    ]
    rest = _mean(np.array(samples))
    return Estimate(space.trace + rest.value, rest.standard_error)


def frobenius(
    operator: SymmetricOperator,
    probes: int = 32,
    *,
    deflate: int | Eigenpairs = 0,
    seed: int = 0,
) -> Estimate:
    r"""The Frobenius norm, from :math:`\|A\|_F^2 = \sum_i \lambda_i^2 = E\|Av\|^2`.

    Deflated, :math:`\|A\|_F^2 = \|AQ\|_F^2 + E\|A P v\|^2`. The standard error of the root is
    that of the square divided by :math:`2\|A\|_F`. Arguments as in :func:`trace`.

    Example:
        >>> import torch
        >>> round(frobenius(torch.diag(torch.tensor([3.0, 4.0])), probes=2).value, 4)
        5.0
    """
    space = _Deflation(operator, deflate, seed)
    samples = [float(image.double().square().sum()) for _, image in space.products(probes)]
    rest = _mean(np.array(samples))
    square = space.square + rest.value
    if square == 0:
        return Estimate(0.0, rest.standard_error)
    return Estimate(sqrt(square), rest.standard_error / (2 * sqrt(square)))


def diagonal(operator: SymmetricOperator, probes: int = 32, *, seed: int = 0) -> VectorEstimate:
    r"""The diagonal by Hutchinson's estimator, :math:`\operatorname{diag} A = E[v \odot Av]`.

    The variance of entry i is :math:`\sum_{j \ne i} A_{ij}^2`. ``operator.split`` gives the
    result the shapes of the parameters.

    Example:
        >>> import torch
        >>> diagonal(torch.diag(torch.tensor([1.0, 2.0])), probes=2).value
        tensor([1., 2.])
    """
    mean = torch.zeros(dimension(operator), dtype=torch.float64, device=operator.device)
    spread = torch.zeros_like(mean)
    for count, (probe, image) in enumerate(_Deflation(operator, 0, seed).products(probes), 1):
        sample = (probe * image).double()
        step = sample - mean  # Welford: one pass, two vectors
        mean += step / count
        spread += step * (sample - mean)
    error = (spread / (probes - 1) / probes).sqrt() if probes > 1 else spread.fill_(nan)
    return VectorEstimate(mean.to(operator.dtype), error.to(operator.dtype))


def diagonal_concentration(
    operator: SymmetricOperator, probes: int = 16, *, seed: int = 0
) -> Estimate:
    r"""How far A is concentrated on its diagonal: :math:`\sum_i A_{ii}^2 / \|A\|_F^2`.

    1 for a diagonal matrix, about :math:`1/d` for one without preferred axes. The squares are
    estimated without bias from products of *different* probes,
    :math:`E[(v \odot Av) \cdot (w \odot Aw)] = \sum_i A_{ii}^2`; the standard error is the
    jackknife's over the probes. The zero matrix counts as diagonal (1).
    """
    if probes < 2:
        raise ValueError(f"probes must be at least 2, not {probes}")
    samples, squares = [], []
    for probe, image in _Deflation(operator, 0, seed).products(probes):
        samples.append(probe * image)
        squares.append(float(image.double().square().sum()))
    stacked = torch.stack(samples)
    gram = (stacked @ stacked.T).double().cpu().numpy()
    norms = np.array(squares)

    def ratio(kept: np.ndarray) -> float:
        block, n = gram[np.ix_(kept, kept)], len(kept)
        off_diagonal = (block.sum() - np.trace(block)) / (n * (n - 1))
        return float(off_diagonal / norms[kept].mean())

    if norms.max() == 0:
        return Estimate(1.0, 0.0)
    everyone = np.arange(probes)
    if probes == 2:
        return Estimate(ratio(everyone), nan)
    without = np.array([ratio(np.delete(everyone, i)) for i in everyone])
    error = sqrt((probes - 1) / probes * float(((without - without.mean()) ** 2).sum()))
    return Estimate(ratio(everyone), error)


class _Deflation:
    """A subspace taken out exactly, and the probes of what is left."""

    def __init__(self, operator: SymmetricOperator, deflate: int | Eigenpairs, seed: int) -> None:
        self.operator, self.generator = operator, probe_generator(seed)
        self.rows: Tensor | None = None
        self.trace = self.square = 0.0  # tr(Qᵀ A Q) and ‖A Q‖²
        if isinstance(deflate, Eigenpairs):
            self.rows = deflate.vectors.T
            self.trace = float(deflate.values.sum())
            self.square = float((deflate.values**2 + deflate.residuals**2).sum())
        elif deflate < 0:
            raise ValueError(f"deflate must not be negative, not {deflate}")
        elif deflate > 0:
            space = Krylov(operator, deflate, self.generator)
            for _ in range(space.capacity):
                space.extend()
            self.rows = space.basis
            self.trace = float(np.trace(space.projected))
            self.square = float((space.projected**2).sum() + space.coupling**2)

    def products(self, probes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (P v, A P v) for probes v of random signs."""
        if probes < 1:
            raise ValueError(f"probes must be at least 1, not {probes}")
        for _ in range(probes):
            probe = _signs(self.operator, self.generator)
            if self.rows is not None:
                for _ in range(2):  # the second time removes what rounding has left
                    probe = probe - (self.rows @ probe) @ self.rows
            yield probe, self.operator @ probe


def _signs(operator: SymmetricOperator, generator: torch.Generator) -> Tensor:
    bits = torch.randint(0, 2, (dimension(operator),), generator=generator, dtype=torch.int8)
    return bits.mul_(2).sub_(1).to(operator.device, operator.dtype)


def _mean(samples: np.ndarray) -> Estimate:
    error = float(samples.std(ddof=1) / sqrt(len(samples))) if len(samples) > 1 else nan
    return Estimate(float(samples.mean()), error)


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
