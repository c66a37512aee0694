"""Draw the pictures of the site into docs/images.

    python scripts/draw_docs.py              # all of them, some minutes
    python scripts/draw_docs.py balls curves # these alone

Drawings show formulas. The others are made by commands, the very ones that docs/gallery.md shows
below each picture. Every SVG has colours for light and dark pages; pages are photographed in both.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes

from lpsgd import CosineP, LinearAlpha, LinearP
from lpsgd.geometry import lp_direction, normalized_direction
from lpsgd.lab.report.style import DASHES, MUTED, SERIES, canvas, legend_below, save_figure

ROOT = Path(__file__).parent.parent
EXPONENTS = {2.0: "p = 2", 3.0: "p = 3", 6.0: "p = 6", math.inf: "p = ∞"}
LOOKS = tuple({"color": c, "ls": d} for c, d in zip(SERIES, DASHES, strict=False))


def balls(axes: Axes) -> None:
    """The unit ball of each norm, and the step of steepest descent on it."""
    gradient = torch.tensor([1.0, 0.25], dtype=torch.float64)
    angle = np.linspace(0, 2 * np.pi, 721)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for (p, label), look in zip(EXPONENTS.items(), LOOKS, strict=True):
        axes.plot(*(circle / np.linalg.norm(circle, p, axis=0)), label=label, **look)
        step = -lp_direction(gradient, p, 1e-12).numpy()
        step /= np.linalg.norm(step, p)
        axes.annotate("", step, (0, 0), arrowprops={"arrowstyle": "->", "color": look["color"]})
    x, y = -gradient.numpy()
    axes.plot([0, 1.6 * x], [0, 1.6 * y], ":", color=MUTED, label="-gradient")
    axes.set_aspect("equal")
    axes.set_axis_off()


def sizes(axes: Axes) -> None:
    """How large the step of a coordinate is for the size of its gradient."""
    g = torch.logspace(-9, 1, 200, dtype=torch.float64)
    for (p, label), look in zip(EXPONENTS.items(), LOOKS, strict=True):
        axes.loglog(g, lp_direction(g, p, 1e-8), label=label, **look)
    axes.axvline(1e-8, color=MUTED, linestyle=":", linewidth=1)
    axes.text(1.3e-8, 2e-9, "eps", color=MUTED)
    axes.set(xlabel="|gradient|", ylabel="|u|", ylim=(1e-9, 10))


def schedules(axes: Axes) -> None:
    """p over a run of 100 steps."""
    shown = {
        "CosineP(6, total_steps=100)": CosineP(6, total_steps=100),
        "CosineP(6, total_epochs=10, steps_per_epoch=10)": CosineP(
            6, total_epochs=10, steps_per_epoch=10
        ),
        "LinearP(6, total_steps=100)": LinearP(6, total_steps=100),
        "LinearAlpha(total_steps=100)": LinearAlpha(total_steps=100),
    }
    for (label, schedule), look in zip(shown.items(), LOOKS, strict=True):
        axes.plot([schedule(step) for step in range(100)], label=label, **look)
    axes.set(xlabel="step", ylabel="p", ylim=(1.8, 10))


def hidden_decay(axes: Axes) -> None:
    """The rms of the step while p is annealed, for gradients of size 1e-3."""
    gradient = 1e-3 * torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    p = CosineP(6, total_steps=100)
    for normalize, look in zip((None, "dual", "rms"), LOOKS, strict=False):
        lengths = [
            normalized_direction(gradient, p(step), normalize=normalize).square().mean().sqrt()
            for step in range(100)
        ]
        axes.semilogy(lengths, label=f"normalize={normalize!r}", **look)
    axes.set(xlabel="step of 100 (p from 6 to 2)", ylabel="rms of u")


DRAWINGS: dict[str, Callable[[Axes], None]] = {
    "balls": balls,
    "sizes": sizes,
    "schedules": schedules,
    "hidden-decay": hidden_decay,
}


@dataclass(frozen=True)
class Command:
    """Command lines and what they make: pictures (SVG) and pages, by the name on the site."""

    lines: tuple[str, ...]
    figures: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)


def in_folder(folder: str, *names: str) -> dict[str, str]:
    """Pictures that keep their names."""
    return {name: f"{folder}/{name}.svg" for name in names}


COMMANDS = (
    Command(
        (
            "lpsgd compare --optimizers sgd,adamw,lion,lpsgdm --seeds 5 --out runs/demo",
            "lpsgd report runs/demo --figure",
        ),
        in_folder("runs/demo", "curves"),
        {"report": "runs/demo/report.html"},
    ),
    Command(
        (
            "lpsgd train --model mlp --width 16 --optimizer lpsgdm --epochs 8 "
            "--curvature every=2,layers=True --out runs/curvature",
            "lpsgd spectrum runs/curvature",
        ),
        in_folder("runs/curvature/spectrum", "density", "evolution", "layers"),
    ),
    Command(
        (
            "lpsgd sweep --space paper --optimizers sgd,adamw,lpsgdm --trials 24 --model mlp "
            "--epochs 5 --out runs/search",
        ),
        in_folder("runs/search/report", "accuracy-over-lr", "lr-and-p", "best-so-far"),
    ),
    Command(
        ("lpsgd reproduce fig3",),
        in_folder("reproduction/cpu/fig3", "fig3", "fig3-lpsgd"),
        {"fig3-page": "reproduction/cpu/fig3/fig3.html"},
    ),
    Command(
        ("lpsgd reproduce theory",),
        in_folder("reproduction/cpu/theory", "theory-rates", "theory-failures"),
    ),
    Command(("python examples/gpt.py",), in_folder(".", "gpt")),
)


def draw(name: str, folder: Path) -> None:
    """Draw a formula."""
    with canvas(5.5, 3.6) as figure:
        DRAWINGS[name](figure.add_subplot())
        legend_below(figure)
    _, png = save_figure(figure, folder / name)
    png.unlink()


def run(command: Command, folder: Path) -> None:
    """Run the lines in an empty folder, and keep the pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "examples").symlink_to(ROOT / "examples")
        for line in command.lines:
            program, *arguments = shlex.split(line)
            module = ["-m", "lpsgd"] if program == "lpsgd" else []
            subprocess.run([sys.executable, *module, *arguments], cwd=scratch, check=True)
        for name, made in command.figures.items():
            shutil.copy(Path(scratch, made), folder / f"{name}.svg")
        for name, page in command.pages.items():
            photograph(Path(scratch, page), folder / name)


def photograph(page: Path, stem: Path) -> None:
    """Write ``stem``-light.png and ``stem``-dark.png, the upper part of the page."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as api:
        browser = api.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": 1200, "height": 1000}, color_scheme=scheme
            )
            tab = context.new_page()
            tab.goto(page.as_uri())
            tab.wait_for_timeout(500)
            tab.screenshot(path=f"{stem}-{scheme}.png")
        browser.close()


def main(names: Sequence[str], folder: Path) -> None:
    """Make these pictures, or all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DRAWINGS:
        if not names or name in names:
            draw(name, folder)
    for command in COMMANDS:
        if not names or set(names) & {*command.figures, *command.pages}:
            run(command, folder)


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="all, if none is given")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    given = parser.parse_args()
    main(given.names, given.out)
