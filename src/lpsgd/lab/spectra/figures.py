"""Three views of spectra: one density, its evolution over epochs, and the layers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10, sqrt
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from lpsgd.curvature.lanczos import Array
from lpsgd.curvature.spectrum import SpectralDensity
from lpsgd.lab.report.style import BLUE, GRID, MUTED, VERMILION, canvas, legend_below, save_figure
from lpsgd.lab.report.widths import text_width
from lpsgd.lab.spectra.records import CurvatureRecord, Spectrum, Statistics

__all__ = ["density_figure", "evolution_figure", "layers_figure", "save_figure"]

AxisScale = Literal["linear", "asinh"]

_BULK, _OUTLIER = BLUE, VERMILION
_WIDTH = 6.4  # inches: a text column
# Width of the kernel in ridges, as a share of the axis; on an asinh axis the nodes stand wider.
_BLUR = {"linear": 0.004, "asinh": 0.014}
_LOOK: dict[str, Any] = {"font.size": 9, "axes.titlesize": 10, "axes.grid": False}


def density_figure(record: CurvatureRecord) -> Figure:
    """The spectral density on a log axis, with the discrete outliers marked."""
    density, numbers = SpectralDensity.from_dict(record), record["statistics"]
    ratio = numbers["anisotropy"]
    anisotropy = "undefined" if ratio is None else f"{ratio:.3g}"
    with canvas(min(_WIDTH, text_width()), 3.4, **_LOOK) as figure:
        axes = figure.add_subplot()
        theta, _ = density.merged()
        # The kernel's tails would reach beyond the smallest and the largest eigenvalue.
        grid, height = density.smoothed(np.linspace(theta[0], theta[-1], 1024))
        # The height of one eigenvalue's bump: below it the curve is the tail of the kernel.
        single = 1 / (density.dimension * density.default_width * sqrt(2 * np.pi))
        floor = single / 10
        axes.fill_between(grid, floor, np.maximum(height, floor), color=_BULK, alpha=0.25, lw=0)
        axes.plot(grid, np.maximum(height, floor), color=_BULK, lw=1.2)
        one = f"one eigenvalue of {density.dimension:,}"
        axes.axhline(single, color=MUTED, lw=0.7, ls=(0, (4, 3)), label=one)
        _mark_outliers(axes, numbers, floor, "^", size=6, label=_outlier_label(numbers))
        legend_below(figure)
        axes.set_yscale("log")
        axes.set_ylim(floor, float(height.max()) * 3)
        axes.set_xlabel("eigenvalue λ")
        axes.set_ylabel("density")
        axes.set_title(
            f"{_matrix(record)} at epoch {record['epoch']}:  "
            f"λ from {numbers['lambda_min']:.3g} to {numbers['lambda_max']:.3g},  "
            f"anisotropy {anisotropy}"
        )
    return figure


def evolution_figure(records: Sequence[CurvatureRecord], scale: AxisScale = "linear") -> Figure:
    """Every spectrum of a run: the eigenvalue across, the epoch up (the paper's Figure 1).

    A ridge's height is the logarithm of the number of eigenvalues near a value; dots are outliers.
    """
    if not records:
        raise ValueError("records must hold at least one measurement")
    with canvas(min(_WIDTH, text_width()), min(2.2 + 0.3 * len(records), 8.0), **_LOOK) as figure:
        axes = figure.add_subplot()
        shades = colormaps["viridis"](np.linspace(0.08, 0.8, len(records)))
        _ridges(axes, records, scale, list(shades))
        axes.set_yticks(range(len(records)), [str(record["epoch"]) for record in records])
        axes.set_ylabel("epoch")
        last = records[-1]
        axes.set_title(
            f"{_matrix(last)}, {last['parameters']:,} parameters, batch norm: {last['batchnorm']}"
        )
    return figure


def layers_figure(record: CurvatureRecord, scale: AxisScale = "asinh") -> Figure:
    """The spectrum of each layer's block, first layer on top; eigenvalues on an asinh axis."""
    layers = record["layers"]
    if not layers:
        raise ValueError(f"the record of epoch {record.get('epoch')} has no layers")
    names = list(layers)[::-1]
    with canvas(min(_WIDTH, text_width()), min(1.4 + 0.32 * len(names), 11.0), **_LOOK) as figure:
        axes = figure.add_subplot()
        _ridges(axes, [layers[name] for name in names], scale, [_BULK] * len(names))
        axes.set_yticks(range(len(names)), [name or "(model)" for name in names])
        counts = axes.secondary_yaxis("right")
        counts.set_yticks(range(len(names)), [f"{layers[name]['parameters']:,}" for name in names])
        counts.tick_params(length=0, labelsize=7, labelcolor=MUTED)
        counts.spines[:].set_visible(False)
        counts.set_ylabel("parameters", fontsize=7, color=MUTED)
        axes.set_title(f"Blocks of the {_matrix(record)} at epoch {record['epoch']}")
    return figure


def _ridges(
    axes: Axes, records: Sequence[Spectrum], scale: AxisScale, colors: Sequence[Any]
) -> None:
    densities = [SpectralDensity.from_dict(record) for record in records]
    values = np.concatenate([nodes for density in densities for nodes in density.nodes])
    unit = float(np.abs(values).max()) or 1.0
    forward, backward = _transform(scale, unit)
    low, high = float(forward(values.min())), float(forward(values.max()))
    margin = 4 * _BLUR[scale] * (high - low) or 0.1
    blur = _BLUR[scale] * (high - low + 2 * margin)
    # Each ridge ends where its eigenvalues do: the kernel's tails beyond them mean nothing.
    nodes = [density.merged()[0] for density in densities]
    positions = [np.linspace(forward(theta[0]), forward(theta[-1]), 800) for theta in nodes]
    counts = [
        _counts(density, forward, across, blur)
        for density, across in zip(densities, positions, strict=True)
    ]
    tallest = max(float(count.max()) for count in counts) or 1.0
    lift = 1.7 / tallest  # ridges may reach into the next row but not hide it
    label = "isolated eigenvalues (outliers)"
    rows = zip(records, positions, counts, colors, strict=True)
    for row, (record, across, count, color) in enumerate(rows):
        depth = len(records) - row  # the lower row in front
        height = row + lift * count
        axes.fill_between(
            backward(across), row, height, color=color, alpha=0.75, lw=0, zorder=depth
        )
        outline = np.where(count > 0.01 * tallest, height, np.nan)  # none where there is nothing
        axes.plot(backward(across), outline, color="white", lw=0.8, zorder=depth + 0.1)
        if _mark_outliers(axes, record["statistics"], row, "o", size=3.2, label=label):
            label = ""  # once in the legend is enough
    if scale == "asinh":
        axes.set_xscale("asinh", linear_width=_linear_width(unit))
        axes.xaxis.set_major_locator(FixedLocator(_decades(unit)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(backward(low - margin), backward(high + margin))
    axes.set_ylim(-0.3, len(records) + 0.9)
    axes.axvline(0, color=MUTED, lw=0.6, zorder=0)
    axes.grid(axis="x", color=GRID, lw=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("eigenvalue λ" + (" (asinh scale)" if scale == "asinh" else ""))
    if not label:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0, fontsize=7.5)


def _mark_outliers(
    axes: Axes, numbers: Statistics, height: float, marker: str, *, size: float, label: str
) -> bool:
    """Mark each isolated eigenvalue at ``height``; say whether there was any."""
    values = [*numbers["outliers"], *numbers["negative_outliers"]]
    if not values:  # an empty line that is not clipped would confuse the layout
        return False
    style: Any = {"color": _OUTLIER, "mec": "white", "mew": 0.5, "ls": "", "zorder": 1000}
    axes.plot(
        values, [height] * len(values), marker=marker, ms=size, clip_on=False, label=label, **style
    )
    return True


def _counts(density: SpectralDensity, forward: Any, positions: Array, width: float) -> Array:
    """log10(1 + number of eigenvalues within about ``width``), along the axis."""
    theta, omega = density.merged()
    offset = (positions[:, None] - forward(theta)[None, :]) / width
    number = density.dimension * (np.exp(-0.5 * offset**2) @ omega)
    return np.asarray(np.log10(1 + number))


def _decades(unit: float) -> list[float]:
    """0 and the powers of ten outside the linear part of the axis, where they do not crowd."""
    first, last = ceil(log10(5 * _linear_width(unit))), floor(log10(unit))
    powers = [10.0**exponent for exponent in range(first, last + 1)]
    return [*(-power for power in reversed(powers)), 0.0, *powers]


def _linear_width(unit: float) -> float:
    return unit * 1e-3


def _transform(scale: AxisScale, unit: float) -> tuple[Any, Any]:
    if scale == "linear":
        return (lambda value: value), (lambda value: value)
    if scale != "asinh":
        raise ValueError(f"scale must be 'linear' or 'asinh', not {scale!r}")
    width = _linear_width(unit)
    return (lambda value: np.arcsinh(value / width)), (lambda value: width * np.sinh(value))


def _matrix(record: CurvatureRecord) -> str:
    return {"hessian": "Hessian", "ggn": "Gauss-Newton matrix"}[record["kind"]]


def _outlier_label(numbers: Statistics) -> str:
    above, below = len(numbers["outliers"]), len(numbers["negative_outliers"])
    return f"outliers: {above} above the bulk" + (f", {below} below" if below else "")
