"""Draw the pictures of the site: python scripts/draw_docs.py [folder, default docs/images]."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from lpsgd import CosineP, LinearAlpha, LinearP
from lpsgd.geometry import lp_direction, normalized_direction

EXPONENTS = {2.0: "p = 2", 3.0: "p = 3", 6.0: "p = 6", math.inf: "p = ∞"}
# the same file for the same picture, and text as text
STYLE = {
    "svg.hashsalt": "lpsgd",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def balls(axes: Axes) -> None:
    """The unit ball of each norm, and the step of steepest descent on it."""
    gradient = torch.tensor([1.0, 0.25], dtype=torch.float64)
    angle = np.linspace(0, 2 * np.pi, 721)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for p, label in EXPONENTS.items():
        (line,) = axes.plot(*(circle / np.linalg.norm(circle, p, axis=0)), label=label)
        step = -lp_direction(gradient, p, 1e-12).numpy()
        step /= np.linalg.norm(step, p)
        axes.annotate("", step, (0, 0), arrowprops={"arrowstyle": "->", "color": line.get_color()})
    x, y = -gradient.numpy()
    axes.plot([0, 1.6 * x], [0, 1.6 * y], ":", color="gray", label="-gradient")
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)


def sizes(axes: Axes) -> None:
    """How large the step of a coordinate is for the size of its gradient."""
    g = torch.logspace(-9, 1, 200, dtype=torch.float64)
    for p, label in EXPONENTS.items():
        axes.loglog(g, lp_direction(g, p, 1e-8), label=label)
    axes.axvline(1e-8, color="gray", linestyle=":", linewidth=1)
    axes.text(1.3e-8, 1e-8, "eps", color="gray")
    axes.set(xlabel="|gradient|", ylabel="|u|", ylim=(1e-9, 10))
    axes.legend(frameon=False)


def schedules(axes: Axes) -> None:
    """p over a run of 100 steps."""
    steps = range(100)
    shown = {
        "CosineP(6, total_steps=100)": CosineP(6, total_steps=100),
        "CosineP(6, total_epochs=10, steps_per_epoch=10)": CosineP(
            6, total_epochs=10, steps_per_epoch=10
        ),
        "LinearP(6, total_steps=100)": LinearP(6, total_steps=100),
        "LinearAlpha(total_steps=100)": LinearAlpha(total_steps=100),
    }
    for label, schedule in shown.items():
        axes.plot(steps, [schedule(step) for step in steps], label=label)
    axes.set(xlabel="step", ylabel="p", ylim=(1.8, 10))
    axes.legend(frameon=False, fontsize=8)


def hidden_decay(axes: Axes) -> None:
    """The rms of the step while p is annealed, for gradients of size 1e-3."""
    gradient = 1e-3 * torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    p = CosineP(6, total_steps=100)
    for normalize in (None, "dual", "rms"):
        lengths = [
            normalized_direction(gradient, p(step), normalize=normalize).square().mean().sqrt()
            for step in range(100)
        ]
        axes.semilogy(lengths, label=f"normalize={normalize!r}")
    axes.set(xlabel="step of 100 (p from 6 to 2)", ylabel="rms of u")
    axes.legend(frameon=False)


PICTURES = {"balls": balls, "sizes": sizes, "schedules": schedules, "hidden-decay": hidden_decay}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        with plt.rc_context(STYLE):
            figure, axes = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
            draw(axes)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
