"""Curvature of a network's loss: products with its Hessian, eigenvalues, spectra, anisotropy.

Everything starts from an operator, which multiplies by the Hessian without ever forming it::

    from lpsgd.curvature import hessian_operator, spectral_density, statistics, top_eigenvalues

    operator = hessian_operator(model, loss, batches)
    top_eigenvalues(operator, k=5).values
    statistics(spectral_density(operator, probes=4, lanczos=64)).anisotropy

The estimators also accept a symmetric ``torch.Tensor`` in the place of the operator.
A measurement leaves no trace in the model: see :mod:`lpsgd.curvature.state`.
"""

from __future__ import annotations

try:
    import numpy as _numpy  # noqa: F401
    import scipy as _scipy  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"lpsgd.curvature needs the package {error.name!r}: pip install 'lpsgd[curvature]'",
        name=error.name,
    ) from error

from lpsgd.curvature.estimators import (
    Estimate,
    VectorEstimate,
    diagonal,
    diagonal_concentration,
    frobenius,
    gradient_densities,
    layer_operators,
    layerwise,
    trace,
)
from lpsgd.curvature.hessian import HessianOperator, hessian_operator
from lpsgd.curvature.lanczos import Eigenpairs, SymmetricOperator, top_eigenvalues
from lpsgd.curvature.monitor import CurvatureMonitor, read_records
from lpsgd.curvature.progress import Cost, measure_cost
from lpsgd.curvature.spectrum import SpectralDensity, spectral_density
from lpsgd.curvature.summary import SpectrumStatistics, statistics

__all__ = [
    "Cost",
    "CurvatureMonitor",
    "Eigenpairs",
    "Estimate",
    "HessianOperator",
    "SpectralDensity",
    "SpectrumStatistics",
    "SymmetricOperator",
    "VectorEstimate",
    "diagonal",
    "diagonal_concentration",
    "frobenius",
    "gradient_densities",
    "hessian_operator",
    "layer_operators",
    "layerwise",
    "measure_cost",
    "read_records",
    "spectral_density",
    "statistics",
    "top_eigenvalues",
    "trace",
]
