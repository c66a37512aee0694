"""Fig. 3: descents on the two quadratics, as figures and as a page to play with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lpsgd.lab.paper.figures import toy
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE = "fig3.html"
QUADRATICS = (toy.STRONG, toy.WEAK)
_LOOKS = dict(
    zip(
        toy.METHODS, zip((BLUE, VERMILION, GREEN, PURPLE), DASHES, "osD^", strict=True), strict=True
    )
)
_LAST = 10  # steps; SignGD visits the minimum at every second one, so one step tells nothing
_FLOOR = 1e-6
_WINDOW = ((-0.6, 2.4), (-0.6, 5.2))


def reproduce(folder: Path) -> Document:
    """Run the four methods on both quadratics, draw them, and write the interactive page."""
    runs = {
        quadratic: {
            method: toy.trajectory(method, quadratic, toy.SETTINGS[quadratic.name])
            for method in toy.METHODS
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
            ("quadratic", *toy.METHODS),
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


def _describe(quadratic: toy.Quadratic) -> str:
    chosen = toy.SETTINGS[quadratic.name]
    first, second = quadratic.curvature
    return (
        f"{quadratic.title}: Hessian diag({first:g}, {second:g}), start {chosen.start}, "
        f"{chosen.steps} steps, learning rates GD {chosen.lr_gd:g} (stable below "
        f"{2 / max(first, second):.3g}), SignGD {chosen.lr_sign:g}, LPSGD {chosen.lr_lpsgd:g} "
        f"with p_max {chosen.p_max:g}."
    )


def _paper_figure(runs: dict[toy.Quadratic, dict[str, toy.Array]]) -> Figure:
    with canvas(TEXT, 3.1) as figure:
        panels = figure.subplots(1, 2)
        for axes, (quadratic, by_method) in zip(panels, runs.items(), strict=True):
            _landscape(axes, quadratic, {name: by_method[name] for name in ("GD", "SignGD")})
        label_panels(*panels)
        panels[0].legend(loc="upper right", framealpha=0.9, frameon=True, edgecolor="none")
    return figure


def _extended_figure(runs: dict[toy.Quadratic, dict[str, toy.Array]]) -> Figure:
    with canvas(TEXT, 5.0) as figure:
        panels = figure.subplots(2, 2, height_ratios=(3, 2))
        for column, (quadratic, by_method) in enumerate(runs.items()):
            _landscape(panels[0, column], quadratic, by_method)
            _losses(panels[1, column], quadratic, by_method)
        label_panels(*panels.flat)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _landscape(axes: Axes, quadratic: toy.Quadratic, runs: dict[str, toy.Array]) -> None:
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
    start = toy.SETTINGS[quadratic.name].start
    axes.plot(*start, "o", ms=5, color="white", mec="#1b1f24", zorder=4)
    axes.annotate("start", start, xytext=(6, -10), textcoords="offset points", color=MUTED)
    axes.set(xlim=(left, right), ylim=(bottom, top), xlabel=r"$\theta^{(1)}$")
    axes.set_ylabel(r"$\theta^{(2)}$")
    first, second = quadratic.curvature
    axes.set_title(f"{quadratic.title}, H = diag({first:g}, {second:g})")
    axes.grid(False)


def _losses(axes: Axes, quadratic: toy.Quadratic, runs: dict[str, toy.Array]) -> None:
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
    return render_page(
        "fig3",
        Path(__file__).parent,
        title="GD, SignGD and LPSGD on two quadratics",
        subtitle="The paper's Fig. 3, with the exponent p to play with. Drag the start point, move "
        "the sliders.",
        data=_page_data(),
    )


def _page_data() -> dict[str, Any]:
    return {
        "methods": toy.METHODS,
        "far": toy.FAR,
        "window": _WINDOW,
        "quadratics": [
            {
                "name": quadratic.name,
                "title": quadratic.title,
                "curvature": quadratic.curvature,
                "minimum": quadratic.minimum,
                "settings": asdict(toy.SETTINGS[quadratic.name]),
            }
            for quadratic in QUADRATICS
        ],
    }
