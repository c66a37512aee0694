"""Fig. 3: the descents against closed forms, and the page in a real browser against Python."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpsgd.lab.paper.figures import fig3, fig3_search
from lpsgd.lab.report.document import write_document
from tests.oracles.lp import paper_p, trajectory


@pytest.mark.parametrize("quadratic", fig3.QUADRATICS, ids=lambda q: q.name)
def test_gd_is_its_closed_form(quadratic: fig3.Quadratic) -> None:
    chosen = fig3.SETTINGS[quadratic.name]
    points = fig3.trajectory("GD", quadratic, chosen)
    steps = np.arange(chosen.steps + 1)[:, None]
    curvature, minimum = np.array(quadratic.curvature), np.array(quadratic.minimum)
    # theta_t - c = (1 - lr*lambda)^t (theta_0 - c)
    expected = minimum + (1 - chosen.lr_gd * curvature) ** steps * (
        np.array(chosen.start) - minimum
    )
    assert np.abs(points - expected).max() < 1e-12


@pytest.mark.parametrize("quadratic", fig3.QUADRATICS, ids=lambda q: q.name)
@pytest.mark.parametrize("method", ["LPSGD, fixed p", "LPSGD, annealed p"])
def test_lpsgd_is_the_papers_algorithm(quadratic: fig3.Quadratic, method: str) -> None:
    chosen = fig3.SETTINGS[quadratic.name]
    points = fig3.trajectory(method, quadratic, chosen)
    curvature, minimum = np.array(quadratic.curvature), np.array(quadratic.minimum)

    def p(t: int) -> float:
        fixed = method == "LPSGD, fixed p"
        return chosen.p_max if fixed else paper_p(chosen.p_max, t + 1, chosen.steps)

    theta = np.array(chosen.start)
    for t in range(chosen.steps):
        gradient = curvature * (theta - minimum)
        (theta,) = trajectory(
            [theta], [[gradient]], p=lambda _, t=t: p(t), lr=lambda _: chosen.lr_lpsgd
        )
        assert points[t + 1] == pytest.approx(theta, abs=1e-9)


def test_signgd_moves_by_its_learning_rate_and_then_oscillates() -> None:
    points = fig3.trajectory("SignGD", fig3.STRONG, fig3.SETTINGS["strong"])
    moves = np.abs(np.diff(points, axis=0))
    lr = fig3.SETTINGS["strong"].lr_sign
    assert moves == pytest.approx(np.full_like(moves, lr))
    assert lr / 2 < np.abs(points[500:, 0] - 1).max() < lr


@pytest.mark.parametrize("quadratic", fig3.QUADRATICS, ids=lambda q: q.name)
def test_signgd_does_not_pass_through_the_minimum_by_its_lattice(
    quadratic: fig3.Quadratic,
) -> None:
    """A rate that divides the distance puts every second step exactly on the minimum."""
    chosen = fig3.SETTINGS[quadratic.name]
    steps = (np.array(quadratic.minimum) - np.array(chosen.start)) / chosen.lr_sign
    assert np.abs(steps - steps.round()).min() > 0.2


def test_the_search_is_that_of_the_optimizers() -> None:
    """Its best rates, given to the real optimizers, reach its losses."""
    steps, p_max = 100, 6.0
    args = (fig3.STRONG.curvature, fig3.STRONG.minimum, (0.0, 0.0), steps, p_max)
    for method, best in fig3_search.search(*args).items():
        chosen = fig3.Settings((0.0, 0.0), steps, p_max, best.lr, best.lr, best.lr)
        points = fig3.trajectory(method, fig3.STRONG, chosen)
        assert fig3.STRONG.loss(points[-10:]).max() == pytest.approx(best.loss, rel=1e-6), method


def test_what_the_text_says_of_the_search_is_what_it_finds() -> None:
    rows = list(fig3._search())
    for steps, p_max, gd, _, sign, _, fixed, _, annealed, _ in rows:
        wins = steps == 3000 or (steps == 1000 and p_max >= 8)
        assert (annealed < min(gd, sign, fixed)) is wins, (steps, p_max)
        if steps == 100:
            assert 0.5 * gd < annealed < gd  # hardly better than GD
        assert sign < 0.2 * gd
    drawn = fig3.SETTINGS["strong"]
    ends = {
        m: fig3.STRONG.loss(fig3.trajectory(m, fig3.STRONG, drawn)[-10:]).max()
        for m in fig3.METHODS
    }
    assert min(ends, key=ends.__getitem__) == "LPSGD, annealed p"


def with_anisotropy(quadratic: fig3.Quadratic, ratio: float) -> fig3.Quadratic:
    """The same geometric mean of the curvatures with λ₁/λ₂ = ``ratio``, as the page makes it."""
    mean, root = np.sqrt(quadratic.curvature[0] * quadratic.curvature[1]), np.sqrt(ratio)
    return replace(quadratic, curvature=(mean * root, mean / root))


def test_anisotropy_keeps_the_mean_and_the_presets() -> None:
    for quadratic in fig3.QUADRATICS:
        same = with_anisotropy(quadratic, quadratic.curvature[0] / quadratic.curvature[1])
        assert same.curvature == pytest.approx(quadratic.curvature)
    round_one = with_anisotropy(fig3.STRONG, 1.0)
    assert round_one.curvature == pytest.approx((10**0.5, 10**0.5))


def test_a_descent_that_diverges_is_stopped() -> None:
    points = fig3.trajectory("GD", fig3.STRONG, replace(fig3.SETTINGS["strong"], lr_gd=0.1))
    assert len(points) < 20
    assert np.abs(points[-1]).max() > fig3.FAR > np.abs(points[-2]).max()


def test_files(tmp_path: Path) -> None:
    written = write_document(fig3.reproduce(tmp_path), tmp_path)
    assert {"fig3.svg", "fig3.png", "fig3.csv", "fig3.html", "fig3.md"} <= {p.name for p in written}
    text = (tmp_path / "fig3.md").read_text()
    for chosen in ("start (0.0, 0.0)", "1000 steps", "GD 0.0096", "GD 0.5", "SignGD 0.13"):
        assert chosen in text
    with (tmp_path / "fig3.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 4 * 1001


# --- the page ----------------------------------------------------------------------------------


@pytest.fixture
def tab(browser: Any, tmp_path: Path) -> Any:
    path = tmp_path / "fig3.html"
    path.write_text(fig3.interactive_page(), encoding="utf-8")
    context = browser.new_context(
        viewport={"width": 1240, "height": 1400}, offline=True, accept_downloads=True
    )
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("#strong .path")
    yield page
    context.close()
    assert complaints == []


def shown_numbers(tab: Any) -> dict[tuple[str, str], np.ndarray]:
    """What the page's own download holds."""
    with tab.expect_download() as waiting:
        tab.click("#save")
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in csv.DictReader(Path(waiting.value.path()).read_text().splitlines()):
        point = (float(row["theta_1"]), float(row["theta_2"]))
        found.setdefault((row["quadratic"], row["method"]), []).append(point)
    return {key: np.array(points) for key, points in found.items()}


def move(tab: Any, slider: str, value: float) -> None:
    """Put a slider as near to ``value`` as its steps allow."""
    tab.evaluate(
        """([id, value]) => {
            const slider = document.getElementById(id);
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        [slider, value],
    )


def slider_value(tab: Any, slider: str) -> float:
    """The number that a logarithmic slider stands for, as the page rounds it."""
    position = float(tab.evaluate("id => document.getElementById(id).value", slider))
    return float(f"{10**position:.4g}")


def compare(
    tab: Any, quadratics: dict[str, fig3.Quadratic], chosen: dict[str, fig3.Settings]
) -> None:
    numbers = shown_numbers(tab)
    for (name, method), points in numbers.items():
        expected = fig3.trajectory(method, quadratics[name], chosen[name])
        assert len(points) == len(expected), (name, method)
        scale = np.maximum(1, np.abs(expected))
        assert np.max(np.abs(points - expected) / scale) < 1e-6, (name, method)
    assert len(numbers) == 8


PRESETS = {q.name: q for q in fig3.QUADRATICS}


def test_the_page_opens_with_pythons_numbers(tab: Any) -> None:
    compare(tab, PRESETS, fig3.SETTINGS)


def test_sliders_and_dragging_give_pythons_numbers(tab: Any) -> None:
    move(tab, "p_max", np.log10(12))
    move(tab, "steps", np.log10(250))
    move(tab, "anisotropy-weak", np.log10(40))
    move(tab, "lr_lpsgd-weak", np.log10(0.3))
    move(tab, "lr_gd-strong", np.log10(0.002))
    box = tab.locator("#weak svg").first.bounding_box()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.7 * box["height"], steps=3)
    tab.mouse.up()
    start = shown_numbers(tab)["weak", "GD"][0]
    assert start[0] > 1.5  # to the right of the minimum
    assert start[1] < 2.5
    p_max, steps = slider_value(tab, "p_max"), round(slider_value(tab, "steps"))
    assert p_max == pytest.approx(12, rel=0.02)
    weak = with_anisotropy(PRESETS["weak"], slider_value(tab, "anisotropy-weak"))
    settings = {
        name: replace(each, p_max=p_max, steps=steps) for name, each in fig3.SETTINGS.items()
    }
    settings["weak"] = replace(
        settings["weak"],
        start=(float(start[0]), float(start[1])),
        lr_lpsgd=slider_value(tab, "lr_lpsgd-weak"),
    )
    settings["strong"] = replace(settings["strong"], lr_gd=slider_value(tab, "lr_gd-strong"))
    compare(tab, {**PRESETS, "weak": weak}, settings)


def test_a_diverging_descent_is_told(tab: Any) -> None:
    move(tab, "lr_gd-strong", np.log10(0.1))
    assert "diverged at step" in tab.inner_text("#strong .ends")
    lr = slider_value(tab, "lr_gd-strong")
    settings = {**fig3.SETTINGS, "strong": replace(fig3.SETTINGS["strong"], lr_gd=lr)}
    compare(tab, PRESETS, settings)


def test_methods_can_be_hidden_and_the_end_moved(tab: Any) -> None:
    assert tab.locator("#strong svg").first.locator(".path").count() == 4
    tab.click("#toggles button:has-text('SignGD')")
    assert tab.locator("#strong svg").first.locator(".path").count() == 3
    move(tab, "shown", 10)
    assert "at step 10" in tab.inner_text("#weak .ends")
    points = tab.locator("#weak svg").first.locator(".path").first.get_attribute("points")
    assert len(points.split(" ")) == 11


def test_playing_ends_at_the_last_step(tab: Any) -> None:
    move(tab, "shown", 950)
    tab.click("#play")
    tab.get_by_text("at step 1000").first.wait_for(timeout=20_000)
    assert tab.inner_text("#play") == "Play"


def test_the_start_moves_with_the_keyboard_and_stays_focused(tab: Any) -> None:
    tab.focus("#strong .start")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowUp")
    start = shown_numbers(tab)["strong", "GD"][0]
    assert start == pytest.approx([0.1, 0.05])


def test_it_asks_for_nothing_and_fits_a_phone(tab: Any) -> None:
    policy = tab.get_attribute("meta[http-equiv]", "content")
    assert "default-src 'none'" in policy
    tab.set_viewport_size({"width": 390, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
