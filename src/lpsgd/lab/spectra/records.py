"""The records of ``curvature.jsonl`` with their types, read here alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypedDict, cast

from lpsgd.curvature.monitor import read_records
from lpsgd.curvature.spectrum import SpectralDensity
from lpsgd.lab.errors import UserError


class Statistics(TypedDict):
    """The numbers of one spectrum; ratios are None where they are not defined."""

    lambda_min: float
    lambda_max: float
    anisotropy: float | None
    effective_rank: float | None
    negative_mass: float | None
    negative_fraction: float
    outlier_count: int
    outliers: list[float]
    negative_outliers: list[float]


class Spectrum(TypedDict):
    """Nodes, weights and residuals of each Lanczos run on one matrix."""

    parameters: int
    epsilon: float
    nodes: list[list[float]]
    weights: list[list[float]]
    residuals: list[list[float]]
    statistics: Statistics


class GradientDensity(TypedDict):
    """The share of gradient entries that matter, of the network and of its layers."""

    overall: float
    layers: dict[str, float]


class CurvatureRecord(Spectrum):
    """One measurement: the network's spectrum, and that of each layer if it was asked for."""

    epoch: float
    kind: Literal["hessian", "ggn"]
    batchnorm: str
    samples: int
    gradient_density: GradientDensity
    layers: dict[str, Spectrum]
    seconds: float


def read_curvature(path: Path) -> dict[float, CurvatureRecord]:
    """The records by epoch, each with everything that figures and tables need."""
    try:
        records = read_records(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {str(path)!r}: {error}") from None
    for record in records:
        if missing := sorted(CurvatureRecord.__required_keys__ - record.keys()):
            epoch = record["epoch"]
            raise UserError(f"{path} is damaged: epoch {epoch} has no {', '.join(missing)}")
        try:
            for spectrum in (record, *record["layers"].values()):
                SpectralDensity.from_dict(spectrum)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{path} is damaged: epoch {record['epoch']}: {error!r}") from None
    return {record["epoch"]: cast("CurvatureRecord", record) for record in records}
