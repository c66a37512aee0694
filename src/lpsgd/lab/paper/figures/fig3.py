"""Fig. 3: descents on the two quadratics, in float64, as figures and as a page to play with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpsgd import LPSGD, ConstantP, CosineP
from lpsgd.lab.report.document import Attachment, Document, Picture, Table, text
from lpsgd.lab.report.style import (
    BLUE,
    DASHES,
    GREEN,
    MUTED,
    PURPLE,
    TEXT,
    VERMILION,
    canvas,
    label_panels,
)
from lpsgd.lab.report.template import render_page
from lpsgd.lab.store.disk.files import write_text
from lpsgd.peers import SignSGD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array: TypeAlias = NDArray[np.float64]
Pair: TypeAlias = tuple[float, float]

FAR = 1e9  # a descent that has gone this far has diverged and is stopped


@dataclass(frozen=True)
class Quadratic:
    """f(θ) = λ₁/2 (θ₁ - c₁)² + λ₂/2 (θ₂ - c₂)²."""

    name: str
    title: str
    curvature: Pair
    minimum: Pair = (1.0, 4.0)

    def loss(self, points: Array) -> Array:
        """f of points (..., 2)."""
        offset = points - np.array(self.minimum)
        value: Array = 0.5 * (np.array(self.curvature) * offset**2).sum(axis=-1)
        return value


STRONG = Quadratic("strong", "strong anisotropy", (200.0, 0.05))
WEAK = Quadratic("weak", "weak anisotropy", (1.2, 0.8))


@dataclass(frozen=True)
class Settings:
    """What the paper does not give of Fig. 3: chosen here, printed with the figure.

    GD's learning rate must stay below 2/λ₁ = 0.01 on the strong quadratic.
    """

    start: Pair = (0.0, 0.0)
    steps: int = 100
    p_max: float = 6.0
    lr_gd: float = 0.009
    lr_sign: float = 0.1
    lr_lpsgd: float = 0.009


SETTINGS = {"strong": Settings(), "weak": Settings(lr_gd=0.5, lr_lpsgd=0.5)}

METHODS = ("GD", "SignGD", "LPSGD, fixed p", "LPSGD, annealed p")


def trajectory(method: str, quadratic: Quadratic, settings: Settings) -> Array:
    """The points (steps + 1, 2) that a method visits; fewer if it diverges."""
    theta = torch.tensor(settings.start, dtype=torch.float64)
    optimizer = _optimizer(method, theta, settings)
    curvature = torch.tensor(quadratic.curvature, dtype=torch.float64)
    minimum = torch.tensor(quadratic.minimum, dtype=torch.float64)
    points = [theta.numpy().copy()]
    for _ in range(settings.steps):
        theta.grad = curvature * (theta - minimum)
        optimizer.step()
        points.append(theta.numpy().copy())
        if not np.abs(points[-1]).max() < FAR:
            break
    return np.stack(points)


def _optimizer(method: str, theta: Tensor, settings: Settings) -> torch.optim.Optimizer:
    if method == "GD":
        return torch.optim.SGD([theta], lr=settings.lr_gd)
    if method == "SignGD":
        return SignSGD([theta], lr=settings.lr_sign)
    annealed = CosineP(settings.p_max, total_epochs=settings.steps, steps_per_epoch=1)
    p = {"LPSGD, fixed p": ConstantP(settings.p_max), "LPSGD, annealed p": annealed}[method]
    return LPSGD([theta], lr=settings.lr_lpsgd, p=p)


# --- the figures -------------------------------------------------------------------------------

PAGE = "fig3.html"
QUADRATICS = (STRONG, WEAK)
_LOOKS = dict(
    zip(METHODS, zip((BLUE, VERMILION, GREEN, PURPLE), DASHES, "osD^", strict=True), strict=True)
)
_LAST = 10  # steps; SignGD visits the minimum at every second one, so one step tells nothing
_FLOOR = 1e-6
_WINDOW = ((-0.6, 2.4), (-0.6, 5.2))


def reproduce(folder: Path) -> Document:
    """Run the four methods on both quadratics, draw them, and write the interactive page."""
    runs = {
        quadratic: {
            method: trajectory(method, quadratic, SETTINGS[quadratic.name]) for method in METHODS
        }
        for quadratic in QUADRATICS
    }
    write_text(folder / PAGE, interactive_page())
    chosen = [_describe(quadratic) for quadratic in QUADRATICS]
    document = Document("fig3", "Fig. 3: descents on two quadratics")
    return document.add(
        text(
            "The paper gives the two functions and nothing else; start, steps and learning rates "
            "are chosen here."
        ),
        text(*chosen),
        Picture(
            "fig3",
            "GD and SignGD on the two quadratics, in the paper's layout. GD creeps along the flat "
            "direction of the strong one and converges on the weak one; SignGD crosses quickly and "
            "then oscillates with the size of its step.",
            _paper_figure(runs),
        ),
        Picture(
            "fig3-lpsgd",
            "The same with LPSGD at a fixed p and with p annealed to 2, and the loss at each step. "
            "On the strong quadratic LPSGD is run with GD's learning rate: with a larger one p = 2 "
            "at the end of the annealing would diverge.",
            _extended_figure(runs),
        ),
        Table(
            "fig3-ends",
            f"Largest loss within the last {_LAST} steps",
            ("quadratic", *METHODS),
            [
                (q.title, *(float(q.loss(points[-_LAST:]).max()) for points in by_method.values()))
                for q, by_method in runs.items()
            ],
        ),
        Table(
            "fig3",
            "every point that is drawn",
            ("quadratic", "method", "step", "theta_1", "theta_2", "loss"),
            [
                (q.name, method, step, *map(float, point), float(q.loss(point)))
                for q, by_method in runs.items()
                for method, points in by_method.items()
                for step, point in enumerate(points)
            ],
            shown=False,
        ),
        Attachment(
            PAGE, "The page on which p_max, learning rate, start and anisotropy can be moved"
        ),
    )


def _describe(quadratic: Quadratic) -> str:
    chosen = SETTINGS[quadratic.name]
    first, second = quadratic.curvature
    return (
        f"{quadratic.title}: Hessian diag({first:g}, {second:g}), start {chosen.start}, "
        f"{chosen.steps} steps, learning rates GD {chosen.lr_gd:g} (stable below "
        f"{2 / max(first, second):.3g}), SignGD {chosen.lr_sign:g}, LPSGD {chosen.lr_lpsgd:g} "
        f"with p_max {chosen.p_max:g}."
    )


def _paper_figure(runs: dict[Quadratic, dict[str, Array]]) -> Figure:
    with canvas(TEXT, 3.1) as figure:
        panels = figure.subplots(1, 2)
        for axes, (quadratic, by_method) in zip(panels, runs.items(), strict=True):
            _landscape(axes, quadratic, {name: by_method[name] for name in ("GD", "SignGD")})
        label_panels(*panels)
        panels[0].legend(loc="upper right", framealpha=0.9, frameon=True, edgecolor="none")
    return figure


def _extended_figure(runs: dict[Quadratic, dict[str, Array]]) -> Figure:
    with canvas(TEXT, 5.0) as figure:
        panels = figure.subplots(2, 2, height_ratios=(3, 2))
        for column, (quadratic, by_method) in enumerate(runs.items()):
            _landscape(panels[0, column], quadratic, by_method)
            _losses(panels[1, column], quadratic, by_method)
        label_panels(*panels.flat)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _landscape(axes: Axes, quadratic: Quadratic, runs: dict[str, Array]) -> None:
    (left, right), (bottom, top) = _WINDOW
    grid = np.meshgrid(np.linspace(left, right, 401), np.linspace(bottom, top, 401))
    height = quadratic.loss(np.stack(grid, axis=-1))
    levels = float(height.max()) * 10.0 ** np.arange(-4, 0.1, 0.5)
    axes.contour(*grid, height, levels=levels, colors="#b8c0c8", linewidths=0.6, zorder=1)
    for method, points in runs.items():
        colour, dash, marker = _LOOKS[method]
        axes.plot(*points.T, color=colour, ls=dash, lw=1.0, zorder=3, label=method)
        axes.lines[-1].set(marker=marker, markersize=2.6, markeredgewidth=0)
    axes.plot(*quadratic.minimum, "*", ms=10, color="#1b1f24", mec="white", mew=0.7, zorder=5)
    start = SETTINGS[quadratic.name].start
    axes.plot(*start, "o", ms=5, color="white", mec="#1b1f24", zorder=4)
    axes.annotate("start", start, xytext=(6, -10), textcoords="offset points", color=MUTED)
    axes.set(xlim=(left, right), ylim=(bottom, top), xlabel=r"$\theta^{(1)}$")
    axes.set_ylabel(r"$\theta^{(2)}$")
    first, second = quadratic.curvature
    axes.set_title(f"{quadratic.title}, H = diag({first:g}, {second:g})")
    axes.grid(False)


def _losses(axes: Axes, quadratic: Quadratic, runs: dict[str, Array]) -> None:
    for method, points in runs.items():
        colour, dash, _ = _LOOKS[method]
        # SignGD jumps between two values from step to step: a thin line leaves the others visible
        width, dash = (0.5, "-") if method == "SignGD" else (1.5, dash)
        losses = np.maximum(quadratic.loss(points), _FLOOR / 10)
        axes.plot(losses, color=colour, ls=dash, lw=width, zorder=2 if width < 1 else 3)
    axes.set(yscale="log", xlabel="step", ylabel=r"loss $f(\theta)$", title="loss")
    axes.set_ylim(bottom=_FLOOR)
    axes.margins(x=0.01)


# --- the page ----------------------------------------------------------------------------------


def interactive_page() -> str:
    """The interactive page: one file, no network, the same formulas as the optimizers'."""
    quadratics = [{**asdict(q), "settings": asdict(SETTINGS[q.name])} for q in QUADRATICS]
    return render_page(
        "fig3",
        Path(__file__).parent,
        title="GD, SignGD and LPSGD on two quadratics",
        subtitle="The paper's Fig. 3, with the exponent p to play with. Drag the start point, move "
        "the sliders.",
        data={"methods": METHODS, "far": FAR, "window": _WINDOW, "quadratics": quadratics},
    )
