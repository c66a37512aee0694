"""What a spectrum says in a few numbers; the definitions stand in the fields' comments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp, log, nan, sqrt

import numpy as np

from lpsgd.curvature.lanczos import Array
from lpsgd.curvature.spectrum import SpectralDensity


@dataclass(frozen=True)
class SpectrumStatistics:
    r"""Numbers of a spectrum :math:`\lambda_1 \ge \dots \ge \lambda_d`.

    Sums are quadratures, :math:`\sum_i f(\lambda_i) \approx d \sum_j \omega_j f(\theta_j)`.
    """

    lambda_max: float  # largest Ritz value
    lambda_min: float  # smallest Ritz value
    trace: float  # Σ λ
    frobenius: float  # √Σ λ²
    anisotropy: float  # d·λ_max / Σ|λ|: 1 for a multiple of the identity
    effective_rank: float  # exp(-Σ π log π) with π = |λ|/Σ|λ|: d if all |λ| are equal
    participation_ratio: float  # (Σ|λ|)² / Σλ²: d if all |λ| are equal
    negative_mass: float  # Σ_{λ<0} |λ| / Σ|λ|
    negative_fraction: float  # share below zero; how well it is known: density.share_below(0)
    outliers: tuple[float, ...]  # isolated eigenvalues above the bulk, descending
    negative_outliers: tuple[float, ...]  # isolated eigenvalues below the bulk, ascending

    @property
    def outlier_count(self) -> int:
        """How many isolated eigenvalues stand above the bulk."""
        return len(self.outliers)

    def to_dict(self) -> dict[str, object]:
        """Plain values, as written to ``curvature.jsonl``."""
        return {**asdict(self), "outlier_count": self.outlier_count}


def statistics(density: SpectralDensity) -> SpectrumStatistics:
    """Compute every statistic of a spectrum from its nodes and weights.

    Ratios to Σ|λ| are nan if all eigenvalues are zero.

    Example:
        >>> import torch
        >>> from lpsgd.curvature import spectral_density
        >>> statistics(spectral_density(torch.eye(4))).anisotropy
        1.0
    """
    theta, omega = density.merged()
    d, size = density.dimension, np.abs(theta)
    # Rounding scatters eigenvalues that are zero to either side of it.
    zero = 100 * density.epsilon * float(size.max())
    negative = theta < -zero
    mass = float(omega @ size)  # Σ|λ| / d
    square = float(omega @ size**2)
    return SpectrumStatistics(
        lambda_max=float(theta[-1]),
        lambda_min=float(theta[0]),
        trace=d * float(omega @ theta),
        frobenius=sqrt(d * square),
        anisotropy=float(theta[-1]) / mass if mass else nan,
        effective_rank=_effective_rank(size, omega, d) if mass else 0.0,
        participation_ratio=d * mass**2 / square if square else 0.0,
        negative_mass=float((omega * size)[negative].sum()) / mass if mass else nan,
        negative_fraction=float(omega[negative].sum()),
        outliers=_outliers(density, 1.0),
        negative_outliers=tuple(-value for value in _outliers(density, -1.0)),
    )


def _effective_rank(size: Array, omega: Array, d: int) -> float:
    """exp(H) with H = log Σ|λ| - Σ|λ| log|λ| / Σ|λ|, both sums by quadrature."""
    live = size > 0
    mass = float(omega[live] @ size[live])
    mean_log = float((omega[live] * size[live]) @ np.log(size[live])) / mass
    return exp(log(d * mass) - mean_log)


def _outliers(density: SpectralDensity, side: float) -> tuple[float, ...]:
    """Isolated eigenvalues beyond three standard deviations of the spectrum on one side of it.

    The probes agree on them once they have converged; the probe with the median count speaks.
    """
    theta, omega = density.merged()
    centre = float(omega @ theta)
    edge = side * centre + 3 * sqrt(max(float(omega @ theta**2) - centre**2, 0.0))
    found = []
    for isolated in density.isolated():
        beyond = np.sort(side * isolated[side * isolated > edge])[::-1]
        found.append(tuple(float(value) for value in beyond))
    return sorted(found, key=len)[(len(found) - 1) // 2]
