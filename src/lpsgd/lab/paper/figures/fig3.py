"""Fig. 3: descents on the two quadratics, in float64, as figures and as a page to play with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpsgd import LPSGD, ConstantP, CosineP
from lpsgd.lab.paper.figures import fig3_search
from lpsgd.lab.report.document import Attachment, Cell, Document, Picture, Table, text
from lpsgd.lab.report.style import (
    BLUE,
    CONTOUR,
    DASHES,
    GREEN,
    INK,
    MUTED,
    PURPLE,
    VERMILION,
    canvas,
    label_panels,
    legend_below,
)
from lpsgd.lab.report.template import render_page
from lpsgd.lab.report.widths import TEXT
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

    On the strong quadratic the learning rates are near the best that `fig3_search` finds for GD,
    SignGD and annealed LPSGD. SignGD's rates divide neither distance to the minimum: else its
    lattice contains the minimum, and every second step lies exactly there.
    """

    start: Pair = (0.0, 0.0)
    steps: int = 1000
    p_max: float = 9.0
    lr_gd: float = 0.0096
    lr_sign: float = 0.0043
    lr_lpsgd: float = 0.0096


SETTINGS = {"strong": Settings(), "weak": Settings(lr_gd=0.5, lr_sign=0.13, lr_lpsgd=0.1)}

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
    searched = list(_search())
    steps, p_max = SETTINGS["strong"].steps, SETTINGS["strong"].p_max
    document = Document("fig3", "Fig. 3: descents on two quadratics")
    return document.add(
        text(
            "The paper gives the two functions and nothing else; start, steps and learning rates "
            "are chosen here."
        ),
        text(*chosen),
        Picture(
            "fig3",
            "GD and SignGD on the two quadratics, in the paper's layout. On the strong one both "
            "have a nearly best learning rate: GD creeps along the flat direction, SignGD arrives. "
            "On the weak one GD converges and SignGD oscillates with the size of its step. Large "
            "marks are the last steps.",
            _paper_figure(runs),
        ),
        Picture(
            "fig3-lpsgd",
            "The same with LPSGD at a fixed p and with p annealed to 2, and the loss at each step. "
            "On the strong quadratic LPSGD is run with GD's learning rate: with a larger one p = 2 "
            "at the end of the annealing would diverge. Annealing pays because the run is long: "
            f"after {steps} steps with p_max = {p_max:g} it ends lowest, after 100 it is hardly "
            "better than GD (the second table).",
            _extended_figure(runs),
        ),
        Table(
            "fig3-ends",
            f"Largest loss within the last {fig3_search.LAST} steps of the runs drawn",
            ("quadratic", *METHODS),
            [
                (
                    q.title,
                    *(float(q.loss(by_method[m][-fig3_search.LAST :]).max()) for m in METHODS),
                )
                for q, by_method in runs.items()
            ],
        ),
        Table(
            "fig3-search",
            "The strong quadratic when every method has the best of "
            f"{len(fig3_search.RATES)} learning rates, for the paper's values of p_max: the "
            f"largest loss within the last {fig3_search.LAST} steps",
            ("steps", "p_max", *METHODS),
            [(*row[:2], *row[2::2]) for row in searched],
        ),
        text(
            "So the paper's point holds for long runs only. Annealed LPSGD is best from 1000 steps "
            "on with p_max 8 or 9 and at 3000 steps with each; up to 300 steps SignGD and a fixed "
            "p are better, because p = 2 bounds the learning rate by GD's."
        ),
        Table(
            "fig3-rates",
            "the search, with the learning rates",
            ("steps", "p_max", *(c for m in METHODS for c in (m, f"{m}: learning rate"))),
            searched,
            shown=False,
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
        Attachment(PAGE, "Interactive page: move p_max, learning rate, start and anisotropy"),
    )


def _search() -> Iterator[tuple[Cell, ...]]:
    """A row for each length and p_max: loss and learning rate of each method."""
    start = SETTINGS["strong"].start
    for steps in fig3_search.STEPS:
        for p_max in fig3_search.EXPONENTS:
            best = fig3_search.search(STRONG.curvature, STRONG.minimum, start, steps, p_max)
            cells = [cell for m in METHODS for cell in (best[m].loss, best[m].lr)]
            yield steps, p_max, *cells


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
        legend_below(figure, panels[0])
    return figure


def _extended_figure(runs: dict[Quadratic, dict[str, Array]]) -> Figure:
    with canvas(TEXT, 5.0) as figure:
        panels = figure.subplots(2, 2, height_ratios=(3, 2))
        for column, (quadratic, by_method) in enumerate(runs.items()):
            _landscape(panels[0, column], quadratic, by_method)
            _losses(panels[1, column], quadratic, by_method)
        label_panels(*panels.flat)
        legend_below(figure, panels[0, 0])
    return figure


def _landscape(axes: Axes, quadratic: Quadratic, runs: dict[str, Array]) -> None:
    (left, right), (bottom, top) = _WINDOW
    grid = np.meshgrid(np.linspace(left, right, 401), np.linspace(bottom, top, 401))
    height = quadratic.loss(np.stack(grid, axis=-1))
    levels = float(height.max()) * 10.0 ** np.arange(-4, 0.1, 0.5)
    axes.contour(*grid, height, levels=levels, colors=CONTOUR, linewidths=0.6, zorder=1)
    for place, (method, points) in enumerate(runs.items()):
        colour, dash, marker = _LOOKS[method]
        line: dict[str, Any] = {"color": colour, "ls": dash, "lw": 1.2, "zorder": 3 - place / 10}
        # markers at equal distances: at each of a thousand steps they would hide the other paths
        axes.plot(*points.T, **line, marker=marker, ms=3, mew=0, markevery=0.05, label=method)
        axes.plot(*points[-1], marker=marker, ms=6, color=colour, mec="white", mew=0.7, zorder=6)
    axes.plot(*quadratic.minimum, "*", ms=10, color=INK, mec="white", mew=0.7, zorder=5)
    start = SETTINGS[quadratic.name].start
    axes.plot(*start, "o", ms=5, color="white", mec=INK, zorder=4)
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
        subtitle="The paper's Fig. 3 with LPSGD. Drag the start point, move the sliders. Annealing "
        "p beats GD and SignGD on the strong quadratic in a run of 1000 steps, not in one of 100.",
        data={"methods": METHODS, "far": FAR, "window": _WINDOW, "quadratics": quadratics},
    )
