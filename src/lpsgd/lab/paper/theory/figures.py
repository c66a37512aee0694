"""The figures of `lpsgd reproduce theory`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lpsgd.lab.paper.theory import failures, rates
from lpsgd.lab.report.style import (
    BLUE,
    DASHES,
    MUTED,
    SERIES,
    VERMILION,
    canvas,
    label_panels,
    legend_below,
    legend_under,
)
from lpsgd.lab.report.widths import COLUMN, TEXT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def rates_figure(measured: Sequence[rates.Rate]) -> Figure:
    """The theorems' bound and the measured mean squared gradient over T."""
    with canvas(TEXT, 2.9) as figure:
        panels = figure.subplots(1, len(measured), sharey=True)
        for axes, rate in zip(panels, measured, strict=True):
            horizons = np.array([point.horizon for point in rate.points])
            means = np.array([point.measured.mean for point in rate.points])
            bounds = np.array([point.bound for point in rate.points])
            axes.plot(horizons, bounds, color=VERMILION, ls=DASHES[1], label="bound")
            axes.plot(horizons, means, color=BLUE, marker="o", ms=4, label="measured")
            guide = means[0] * (horizons / horizons[0]) ** -0.5
            axes.plot(horizons, guide, color=MUTED, ls=DASHES[2], lw=1, label="slope -1/2")
            slope = rate.slope
            axes.set(xscale="log", yscale="log", xlabel="horizon T (steps)")
            axes.set_title(f"{rate.theorem}: slope {slope.mean:.2f}")
        panels[0].set_ylabel(r"mean of $\|\nabla f\|_2^2$ over the run")
        legend_below(figure, panels[0])
        label_panels(*panels)
    return figure


def failures_figure(
    scales: failures.Array,
    aligned: dict[float, failures.Array],
    cosine: failures.Array,
    skew: failures.Skew,
) -> Figure:
    """Alignment by scale, the angle under momentum, and the drift under skewed noise."""
    with canvas(TEXT, 2.8) as figure:
        scale, angle, noise = figure.subplots(1, 3)
        for (p, values), colour, dash in zip(aligned.items(), SERIES, DASHES, strict=False):
            name = "inf" if math.isinf(p) else f"{p:g}"
            scale.plot(scales, values, color=colour, ls=dash, label=f"p = {name}")
        scale.set(xscale="log", yscale="log", xlabel="scale of the gradient")
        scale.set_ylabel(r"$\langle g,u\rangle\ /\ \|g\|_2^2$")
        scale.set_title("large gradients")
        legend_under(scale)
        _angle(angle, cosine)
        noise.axhline(0, color=MUTED, lw=0.8)
        noise.plot(skew.constant, color=VERMILION, ls=DASHES[1], label="p = 6")
        noise.plot(skew.annealed, color=BLUE, label="p from 6 to 2")
        noise.set(xlabel="step", ylabel=r"mean $\theta$", title="skewed noise")
        legend_under(noise)
        label_panels(scale, angle, noise)
    return figure


def _angle(axes: Axes, cosine: failures.Array) -> None:
    steps = np.arange(len(cosine))
    axes.axhline(0, color=MUTED, lw=0.8)
    axes.plot(steps, cosine, color=BLUE, lw=1)
    uphill = np.minimum(cosine, 0)
    axes.fill_between(steps, uphill, 0, color=VERMILION, alpha=0.6, lw=0)
    axes.set(
        xlabel="step", ylabel=r"cosine of $\nabla f$ and $v$", title="momentum (shaded: uphill)"
    )


def decay_figure(found: Sequence[failures.Decay]) -> Figure:
    """The norm of the parameters over time, for each weight decay."""
    with canvas(COLUMN, 2.5) as figure:
        axes = figure.subplots()
        for d, colour, dash in zip(found, SERIES, DASHES, strict=False):
            axes.plot(d.norms, color=colour, ls=dash, label=f"λ = {d.weight_decay:g}")
        axes.set(yscale="log", xlabel="step", ylabel=r"$\|\theta\|_2$, mean of replicates")
        legend_below(figure)
    return figure
