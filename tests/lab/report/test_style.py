"""Every figure: legends cover nothing, titles fit, and an SVG has colours for a dark page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from lpsgd.lab.analysis.stats import summarise
from lpsgd.lab.paper.figures import fig3
from lpsgd.lab.paper.figures.accuracy import accuracy_figure
from lpsgd.lab.paper.scales import SCALES
from lpsgd.lab.paper.tables import decay
from lpsgd.lab.paper.tables import published as published_tables
from lpsgd.lab.paper.theory import failures
from lpsgd.lab.paper.theory import figures as theory
from lpsgd.lab.paper.theory.rates import Rate, RatePoint
from lpsgd.lab.report import figure as curves
from lpsgd.lab.report import style
from lpsgd.lab.report.document import Document, Picture, write_document, write_document_page
from lpsgd.lab.report.source import Source
from lpsgd.lab.report.widths import WIDTHS
from lpsgd.lab.store.run_record import RunRecord, load_comparison
from tests.lab.made_up_runs import write_comparison

LABELS = ("sgd", "adamw", "lion", "lpsgdm:lr=0.01,p=6", "lpsgdm:normalize=rms,p=inf", "lpmuon")


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RunRecord]]:
    finals = {label: [90.0 + place, 91.0 + place] for place, label in enumerate(LABELS)}
    folder = write_comparison(tmp_path_factory.mktemp("runs") / "c", finals)
    runs = load_comparison(folder).runs
    return {label: [run for run in runs if run.label == label] for label in LABELS}


def compared(groups: dict[str, list[RunRecord]]) -> Figure:
    return curves.curves_figure(groups)


def published(groups: dict[str, list[RunRecord]]) -> Figure:
    return accuracy_figure({"ResNet-18 / CIFAR-10": groups, "VGG-11 / CIFAR-10": groups})


def long_titles(groups: dict[str, list[RunRecord]]) -> Figure:
    """Of the longest names that a scale gives its data, above three panels."""
    titles = [place.title for scale in SCALES.values() for place in scale.stand_ins.values()]
    longest = max(titles, key=len)
    return accuracy_figure({f"{model} / {longest}": groups for model in published_tables.MODELS})


def one_panel(groups: dict[str, list[RunRecord]]) -> Figure:
    return accuracy_figure({"ResNet-18 / CIFAR-10": groups})


def hidden_decay(groups: dict[str, list[RunRecord]]) -> Figure:
    return decay._figure(groups)


def quadratics(_: Any) -> Figure:
    return fig3._paper_figure(descents())


def quadratics_with_lpsgd(_: Any) -> Figure:
    return fig3._extended_figure(descents())


def descents() -> dict[fig3.Quadratic, dict[str, Any]]:
    return {
        q: {m: fig3.trajectory(m, q, fig3.SETTINGS[q.name]) for m in fig3.METHODS}
        for q in fig3.QUADRATICS
    }


def rates(_: Any) -> Figure:
    points = [RatePoint(T, 0.1, 9 / T**0.5, summarise([1 / T**0.5]), 0, 0) for T in (100, 1000)]
    none: Any = None
    return theory.rates_figure([Rate(n, none, 1, 1, points, summarise([-0.5])) for n in ("1", "2")])


def broken_assumptions(_: Any) -> Figure:
    scales = np.logspace(-3, 3, 20)
    line = np.linspace(-1, 1, 50)
    skew = failures.Skew({}, line, -line, 0.0)
    return theory.failures_figure(scales, failures.alignment_by_scale(scales), line, skew)


def norms(_: Any) -> Figure:
    found = [failures.Decay(d, np.linspace(2, 1, 9), 1.0, 1.0) for d in (0.0, 0.01, 0.1, 1.0)]
    return theory.decay_figure(found)


DRAWINGS = (
    compared,
    published,
    long_titles,
    one_panel,
    hidden_decay,
    quadratics,
    quadratics_with_lpsgd,
    rates,
    broken_assumptions,
    norms,
)


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
def test_legends_cover_nothing_and_fit(draw: Callable[[Any], Figure], groups: Any) -> None:
    drawn = draw(groups)
    drawn.draw_without_rendering()
    legends = list(legends_of(drawn))
    assert legends
    for legend in legends:
        box = legend.get_window_extent()
        assert drawn.bbox.x0 <= box.x0 < box.x1 <= drawn.bbox.x1
        assert drawn.bbox.y0 - 1 <= box.y0  # constrained layout rounds to a fraction of a pixel
        for axes in drawn.axes:
            assert not box.overlaps(axes.bbox)


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
def test_titles_are_not_cut_off(draw: Callable[[Any], Figure], groups: Any) -> None:
    drawn = draw(groups)
    drawn.draw_without_rendering()
    for axes in drawn.axes:
        for title in (axes.title, axes._left_title, axes._right_title):  # type: ignore[attr-defined]
            box = title.get_window_extent()
            inside = box.x1 <= drawn.bbox.x1 and box.y1 <= drawn.bbox.y1 + 1
            assert inside or not title.get_text(), title.get_text()


def legends_of(drawn: Figure) -> Iterator[Any]:
    return chain(drawn.legends, (a.get_legend() for a in drawn.axes if a.get_legend()))


# --- a dark page -------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_series_and_text_have_contrast_on_both_grounds() -> None:
    on_dark = style.DARK["#ffffff"]
    for colour in style.SERIES:
        assert contrast(style.DARK.get(colour, colour), on_dark) >= 3, colour
    for colour in (style.INK, style.MUTED):
        assert contrast(colour, "#ffffff") >= 4.5
        assert contrast(style.DARK[colour], on_dark) >= 4.5


def test_no_text_of_an_svg_stays_dark(groups: Any, tmp_path: Path) -> None:
    """Text without a colour of its own would be black on a dark page."""
    svg, _ = style.save_figure(compared(groups), tmp_path / "curves")
    texts = re.findall(r'<g id="text_\d+">.*?<g (?:style="([^"]*)")?', svg.read_text(), re.DOTALL)
    assert texts
    for look in texts:
        colour = re.search(r"fill: (#\w{6})", look)
        assert colour is not None
        assert colour[1] in style.DARK


@pytest.mark.parametrize("system", ["light", "dark"])
def test_figures_follow_the_pages_theme(
    browser: Any, groups: Any, tmp_path: Path, system: str
) -> None:
    document = Document("d", "title").add(Picture("p", "caption", compared(groups)))
    write_document(document, tmp_path / "d")
    page = write_document_page([document], tmp_path, title="t", subtitle="s")
    context = browser.new_context(color_scheme=system, offline=True)
    tab = context.new_page()
    tab.goto(page.as_uri())
    image = tab.locator("figure img")
    found = {}
    for _ in range(3):
        theme = tab.inner_text("#theme").removeprefix("Theme: ")
        pixels = np.asarray(Image.open(io.BytesIO(image.screenshot())).convert("L"))
        inside = pixels[10:-10, 10:-10]
        found[theme] = float(np.median(inside)), float(inside.min()), float(inside.max())
        tab.click("#theme")
    context.close()
    ground, darkest, _ = found["light"]
    assert ground == 255
    assert darkest < 80
    ground, _, brightest = found["dark"]
    assert ground < 40
    assert brightest > 200
    assert found["system"] == found[system]


# --- papers --------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it is seen
SIMULATED = {
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}


def lab(colour: str, matrix: Any) -> Any:
    """CIE L*a*b* (D65) of a colour as somebody with that vision sees it."""
    srgb = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(matrix) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.asarray(to_xyz) @ seen / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def closest(colours: Any, matrix: Any) -> float:
    """The least distance between two of the colours; about 2 can just be told apart."""
    seen = [lab(colour, matrix) for colour in colours]
    pairs = [(a, b) for place, a in enumerate(seen) for b in seen[:place]]
    return min(float(np.linalg.norm(a - b)) for a, b in pairs)


@pytest.mark.parametrize("vision", SIMULATED)
def test_series_differ_for_the_colour_blind(vision: str) -> None:
    matrix = SIMULATED[vision]
    assert closest(style.SERIES, matrix) > 12
    matplotlib_default = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
    assert closest(matplotlib_default, matrix) < 8  # the measure tells a poor palette


@pytest.mark.parametrize("width", [*WIDTHS.values(), 2.0])
def test_a_figure_has_the_width_of_the_template(width: float, groups: Any) -> None:
    drawn = curves.curves_figure(groups, width=width)
    drawn.draw_without_rendering()
    assert drawn.get_figwidth() == width
    for axes in drawn.axes:
        assert axes.bbox.width > 0.3 * drawn.bbox.width
        assert axes.bbox.height > 0.4 * drawn.dpi
    (legend,) = drawn.legends
    assert not any(legend.get_window_extent().overlaps(axes.bbox) for axes in drawn.axes)


def test_files_name_the_command_and_the_versions(groups: Any, tmp_path: Path) -> None:
    command = "lpsgd compare --optimizers 'a<b>&c' é"
    source = Source(command, "lpsgd 1.2, torch 3.4")
    kinds = ("svg", "png", "pdf")
    for _ in range(2):
        written = style.save_figure(compared(groups), tmp_path / "c", formats=kinds, source=source)
        svg, png, pdf = (path.read_bytes() for path in written)
    space = "{http://purl.org/dc/elements/1.1/}"
    (described,) = ElementTree.fromstring(svg).iter(f"{space}description")
    assert described.text == command
    assert b"lpsgd 1.2, torch 3.4" in svg
    information = Image.open(io.BytesIO(png)).info
    assert information["Description"] == command
    assert information["Software"] == "lpsgd 1.2, torch 3.4"
    assert b"lpsgd 1.2, torch 3.4" in pdf
    assert b"CreationDate" not in pdf
    assert b"/Subtype /Type3" not in pdf
    again = style.save_figure(compared(groups), tmp_path / "d", formats=kinds, source=source)
    assert [path.read_bytes() for path in again] == [svg, png, pdf]
