"""One look for every figure that goes into a file: readable at a column's width, colour-blind safe.

The colours are Okabe and Ito's; series also differ in dashes and markers, so that nothing depends
on colour alone. An SVG has a second set of colours, which browsers use where the page is dark.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpsgd.lab.report.source import Source
from lpsgd.lab.store.disk.files import write_bytes

INK, MUTED, GRID = "#1b1f24", "#6b7480", "#e4e7eb"
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, BLACK = "#e69f00", "#56b4e9", "#222222"
CONTOUR = "#b8c0c8"
SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))

# What a colour becomes on a dark page; the others have enough contrast on both.
DARK = {
    "#ffffff": "#1a1d21",
    INK: "#e9ebee",
    MUTED: "#a3abb4",
    GRID: "#343a41",
    CONTOUR: "#4d555e",
    BLUE: "#5a93f0",
    BLACK: "#e9ebee",
}

STYLE: Any = {
    "font.size": 8,
    "text.color": INK,
    "axes.facecolor": "none",
    "axes.prop_cycle": cycler(color=SERIES),
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 8.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "mathtext.fontset": "dejavusans",
    "pdf.fonttype": 42,  # TrueType: conferences refuse Type 3
    "svg.hashsalt": "lpsgd",  # the same figure gives the same file
}


def literal(label: str) -> str:
    r"""A label as matplotlib must have it to show it as it is: no formula, nothing unprintable.

    >>> print(literal("$x^$"))
    \$x^\$
    """
    return label.encode(errors="replace").decode().replace("$", r"\$")


def series_styles(labels: Iterable[str]) -> dict[str, tuple[str, Any]]:
    """A colour and a dash for each label, the same in every panel of a figure."""
    looks = zip(cycle(SERIES), cycle(DASHES), strict=False)
    return dict(zip(labels, looks, strict=False))


@contextmanager
def canvas(width: float, height: float, **changes: Any) -> Iterator[Figure]:
    """A figure of that size in inches; what is drawn in the block has the common look."""
    look: Any = {**STYLE, **changes}
    with matplotlib.rc_context(look):
        yield Figure(figsize=(width, height), layout="constrained")


def label_panels(*panels: Axes) -> None:
    """Put (a), (b), ... before the panels' titles, as the paper names them."""
    for letter, axes in zip("abcdefgh", panels, strict=False):
        axes.set_title(f"({letter}) {axes.get_title(loc='left')}".rstrip(), loc="left")


def legend_below(figure: Figure, *panels: Axes) -> None:
    """One legend for all panels, below them: it covers nothing, in as many columns as fit."""
    entries: dict[str, Any] = {}
    for axes in panels or figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    for columns in range(len(entries), 0, -1):
        legend = figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=columns
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()


def legend_under(axes: Axes) -> None:
    """A legend of this panel alone, under the label of its horizontal axis."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=4.5, ncols=2)


def save_figure(
    figure: Figure,
    stem: Path,
    *,
    formats: Sequence[str] = ("svg", "png"),
    source: Source | None = None,
) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png`` (300 dpi), or other formats, each atomically.

    With a ``source``, the files name the versions and the command that made them.
    """
    written = []
    for name in formats:
        buffer = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            dpi: Any = 300 if name == "png" else "figure"
            figure.savefig(buffer, format=name, dpi=dpi, metadata=_metadata(name, source))
        content = buffer.getvalue()
        if name == "svg":
            content = content.replace(b"</style>", _dark_rules().encode() + b"</style>", 1)
        path = stem.with_name(f"{stem.name}.{name}")
        write_bytes(path, content)
        written.append(path)
    return written


def _metadata(name: str, source: Source | None) -> dict[str, Any]:
    """Each format has words of its own; a date would make equal figures differ."""
    known: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(name, {})
    if source is None:
        return known
    versions, *command = source.lines()
    creator, description = {
        "svg": ("Creator", "Description"),
        "pdf": ("Creator", "Subject"),
        "png": ("Software", "Description"),
    }[name]
    return {**known, creator: versions, **({description: command[0]} if command else {})}


def _dark_rules() -> str:
    """CSS for an SVG on a dark page: other colours, and the page's own ground.

    A browser asks the page's `color-scheme` for an image, so that a switch on the page is followed.
    """
    rules = [
        f'[style*="{part}: {light}"]{{{part}:{dark} !important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
        if (part, light) != ("stroke", "#ffffff")  # a light rim around marks and ridges stays
    ]
    ground = "#figure_1>#patch_1 path{fill:none !important}"
    return f"@media (prefers-color-scheme: dark){{{''.join(rules)}{ground}}}"
