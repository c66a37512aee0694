"""The distribution of all eigenvalues, by stochastic Lanczos quadrature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lpsgd.curvature.estimators import Estimate
from lpsgd.curvature.lanczos import (
    Array,
    Krylov,
    SymmetricOperator,
    dimension,
    probe_generator,
)

# A Ritz value is taken for a single eigenvalue when its residual is below this share of the
# distance to its neighbours.
_ISOLATED = 0.1


def spectral_density(
    operator: SymmetricOperator,
    probes: int = 4,
    lanczos: int = 64,
    *,
    seed: int = 0,
    basis_device: torch.device | str | None = None,
) -> SpectralDensity:
    r"""Estimate :math:`\phi(\lambda) = \frac1d \sum_i \delta(\lambda - \lambda_i)`.

    From a probe :math:`v` on the unit sphere, m Lanczos steps give nodes :math:`\theta_j` and
    weights :math:`\omega_j` with :math:`\sum_j \omega_j f(\theta_j) = v^\top f(A) v` for every
    polynomial f of degree below 2m; its mean over probes is :math:`\frac1d \sum_i f(\lambda_i)`.
    All vectors are re-orthogonalised, so no eigenvalue appears twice.

    Args:
        operator: an operator or a symmetric tensor.
        probes: random vectors; the error falls as one over the root of ``probes`` times d.
        lanczos: products for each probe; fewer are used if the space is exhausted before.
        seed: of the probes.
        basis_device: where the Lanczos basis lives (``lanczos`` vectors of the parameters' size).

    Example:
        >>> import torch
        >>> density = spectral_density(torch.eye(3) * 2, probes=1)
        >>> density.nodes[0].round(4), density.weights[0].round(4)
        (array([2.]), array([1.]))
    """
    if probes < 1 or lanczos < 1:
        raise ValueError(f"probes and lanczos must be at least 1, not {probes} and {lanczos}")
    generator = probe_generator(seed)
    nodes, weights, residuals = [], [], []
    for _ in range(probes):
        space = Krylov(operator, lanczos, generator, basis_device)
        while space.size < space.capacity:
            space.extend()
            if space.coupling == 0.0:  # invariant: the quadrature is exact for this probe
                break
        values, vectors, errors = space.ritz()
        nodes.append(values)
        weights.append(vectors[0] ** 2)
        residuals.append(errors)
    return SpectralDensity(
        tuple(nodes),
        tuple(weights),
        tuple(residuals),
        dimension(operator),
        float(torch.finfo(operator.dtype).eps),
    )


def _alone(nodes: Array, residuals: Array) -> NDArray[np.bool_]:
    """Which nodes have a residual that is small beside the distance to their neighbours."""
    gaps = np.diff(nodes, prepend=-np.inf, append=np.inf)
    return np.asarray(residuals <= _ISOLATED * np.minimum(gaps[:-1], gaps[1:]))


@dataclass(frozen=True)
class SpectralDensity:
    """Raw quadratures, one per probe: nodes (ascending), weights (sum 1), residuals of the nodes.

    ``epsilon`` is the precision of the products, below which an eigenvalue counts as zero.
    """

    nodes: tuple[Array, ...]
    weights: tuple[Array, ...]
    residuals: tuple[Array, ...]
    dimension: int
    epsilon: float

    def mean(self, function: Callable[[Array], Array]) -> Estimate:
        r"""The mean of ``function`` over all eigenvalues, :math:`\frac1d \sum_i f(\lambda_i)`.

        For a probe on the sphere the variance of :math:`v^\top f(A) v` is
        :math:`\frac{2}{d+2} (\overline{f^2} - \bar f^2)`, which the quadrature itself
        estimates: there is a standard error even for one probe. A probe that happens to miss an
        isolated eigenvalue would call its own error small; but the eigenvalue is known to be there,
        with a share of 1/d or more, and counts with no less.
        """
        theta, omega = self.merged()
        values = function(theta)
        average = float(omega @ values)
        spread = float(omega @ (values - average) ** 2)
        for known in self.isolated():
            least = float(((function(known) - average) ** 2).sum()) / self.dimension
            spread = max(spread, least)
        return Estimate(average, sqrt(2 / (self.dimension + 2) * spread / len(self.nodes)))

    def moment(self, order: int) -> Estimate:
        """The mean of the eigenvalues' powers, tr(A^order)/d."""
        return self.mean(lambda values: values**order)

    def merged(self) -> tuple[Array, Array]:
        """All probes' nodes with weights that sum to 1, sorted by node."""
        theta = np.concatenate(self.nodes)
        omega = np.concatenate(self.weights) / len(self.nodes)
        order = np.argsort(theta, kind="stable")
        return theta[order], omega[order]

    def isolated(self) -> tuple[Array, ...]:
        """The nodes of each probe that are single eigenvalues and not averages of many.

        Their residual is at most a tenth of the distance to their neighbours; in a continuum of
        eigenvalues the two are alike.
        """
        return tuple(
            nodes[_alone(nodes, residuals)]
            for nodes, residuals in zip(self.nodes, self.residuals, strict=True)
        )

    def share_below(self, value: float) -> tuple[float, float]:
        r"""Between which bounds the share of eigenvalues below ``value`` lies.

        By Chebyshev, Markov and Stieltjes a Gauss quadrature bounds the distribution F of a probe
        at its own nodes, :math:`\sum_{j<i} \omega_j \le F(\theta_i) \le \sum_{j \le i} \omega_j`;
        between two nodes the bounds of both hold. A node in the midst of a bulk stands for all of
        it: each of the two nodes around ``value`` may stand for eigenvalues on the other side,
        unless its residual is small beside its distance. The probes' sampling comes on top.

        Example:
            >>> import torch
            >>> from lpsgd.curvature import spectral_density
            >>> spectral_density(torch.diag(torch.tensor([-1.0, 1, 2])), probes=1).share_below(-2)
            (0.0, 0.0)
        """
        bounds = []
        for nodes, weights, residuals in zip(self.nodes, self.weights, self.residuals, strict=True):
            k = int(np.searchsorted(nodes, value))
            sure = _alone(np.insert(nodes, k, value), np.insert(residuals, k, 0.0))
            unsure = np.where(np.delete(sure, k), 0.0, weights)
            below = float(weights[:k].sum())
            bounds.append((below - unsure[k - 1 : k].sum(), below + unsure[k : k + 1].sum()))
        low, high = np.mean(bounds, axis=0)
        return float(max(low, 0.0)), float(min(high, 1.0))

    @property
    def default_width(self) -> float:
        """A smoothing width at which m nodes, spread evenly over the range, just merge."""
        theta, _ = self.merged()
        span = float(theta[-1] - theta[0])
        steps = max(len(nodes) for nodes in self.nodes)
        if span == 0.0 or steps == 1:
            return 1e-2 * max(abs(float(theta[-1])), 1e-12)
        return 0.6 * span / (steps - 1)

    def smoothed(
        self, grid: Array | None = None, width: float | None = None
    ) -> tuple[Array, Array]:
        """(grid, density): the nodes blurred by a Gaussian of standard deviation ``width``."""
        theta, omega = self.merged()
        width = self.default_width if width is None else width
        if width <= 0:
            raise ValueError(f"width must be positive, not {width}")
        if grid is None:
            grid = np.linspace(theta[0] - 5 * width, theta[-1] + 5 * width, 1024)
        offset = (np.asarray(grid)[:, None] - theta[None, :]) / width
        bumps = np.exp(-0.5 * offset**2) / (width * sqrt(2 * pi))
        return np.asarray(grid), bumps @ omega

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, as written to ``curvature.jsonl``."""
        return {
            "parameters": self.dimension,
            "epsilon": self.epsilon,
            "nodes": [nodes.tolist() for nodes in self.nodes],
            "weights": [weights.tolist() for weights in self.weights],
            "residuals": [residuals.tolist() for residuals in self.residuals],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> SpectralDensity:
        """Undo :meth:`to_dict`."""
        nodes, weights, residuals = (
            tuple(np.asarray(values, dtype=np.float64) for values in record[name])
            for name in ("nodes", "weights", "residuals")
        )
        return cls(nodes, weights, residuals, int(record["parameters"]), float(record["epsilon"]))
