"""The HTML page, opened and used in a real browser."""

from __future__ import annotations

import itertools
import json
import math
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from lpsgd.lab.analysis.comparison import analyse
from lpsgd.lab.report.charts import chart_data
from lpsgd.lab.report.comparison_page import write_comparison_page
from lpsgd.lab.report.template import environment
from lpsgd.lab.store.run_record import load_comparison
from tests.lab.made_up_runs import history, write_comparison, write_run

HOSTILE = (
    "</script><img src=x onerror='window.hacked=1'>\"'&amp; %{x} "
    "<a href='javascript:hacked=1'>go</a>"
)
FINALS = {
    "sgd": [90.0, 91.0, 89.5, 90.4, 90.9],
    "adamw": [90.2, 90.7, 89.6, 90.3, 91.1],
    "lpsgdm": [92.1, 92.8, 91.6, 92.6, 92.8],
}


# --- what needs no browser --------------------------------------------------------------------


def rendered(source, **values):
    return environment().from_string(source).render(values)


def test_templates_escape_what_is_not_markup():
    assert rendered(
        '<p title="{{ t }}">{{ a }}{{ b }}</p>', t='"', a="<b>", b=Markup("<i></i>")
    ) == ('<p title="&#34;">&lt;b&gt;<i></i></p>')
    assert rendered("{{ a }}{{ b }}", a="&", b=Markup("&amp;")) == "&amp;&amp;"


def test_templates_refuse_a_name_that_was_not_given():
    with pytest.raises(UndefinedError, match="absent"):
        rendered("{{ absent }}")


def test_embedded_json_is_the_same_value_and_cannot_end_its_element():
    value = {"name": HOSTILE, "u": "\u2028"}
    text = rendered("{{ value|tojson }}", value=value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)
    with pytest.raises(ValueError, match="JSON"):
        rendered("{{ value|tojson }}", value=math.nan)


def test_lines_are_means_over_complete_runs_and_diverged_runs_stand_apart(tmp_path):
    folder = write_comparison(tmp_path / "c", {"sgd": [90.0, 92.0, 94.0]})
    rows = history(50.0, seed=3)[:2]
    write_run(folder / "runs/more/seed-3", "sgd", 3, rows, state="diverged")
    plan = json.loads((folder / "comparison.json").read_text())
    (folder / "comparison.json").write_text(json.dumps({**plan, "seeds": [0, 1, 2, 3]}))
    (optimizer,) = chart_data(analyse(load_comparison(folder)))["optimizers"]
    line = optimizer["lines"]["test_top1"]
    assert line["epoch"] == [1, 2, 3, 4, 5]
    assert (line["mean"][-1], line["min"][-1], line["max"][-1]) == (92, 90, 94)
    half = 4.302653 * 2 / math.sqrt(3)
    assert (line["low"][-1], line["high"][-1]) == pytest.approx((92 - half, 92 + half), abs=1e-3)
    assert line["n"] == [3] * 5
    assert line["seconds"] == [9, 11, 13, 15, 17]
    assert [seed["diverged"] for seed in line["seeds"]] == [False, False, False, True]
    assert line["seeds"][3]["epoch"] == [1, 2]


def test_infinite_p_is_drawn_as_its_alpha(tmp_path):
    rows = history(90.0, seed=0)
    for row, p in zip(rows, [math.inf, 11.0, 3.0, 2.5, 2.0], strict=True):
        row["p"] = p
    write_run(tmp_path / "a", "lpsgdm", 0, rows)
    data = chart_data(analyse(load_comparison(tmp_path)))
    assert "p" not in {chart["key"] for chart in data["charts"]}
    alpha = data["optimizers"][0]["lines"]["alpha"]["mean"]
    assert alpha == pytest.approx([0, 0.1, 0.5, 1 / 1.5, 1], abs=1e-5)


# Simulation of the three dichromacies (Machado, Oliveira, Fernandes 2009, severity 1), linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def linear(colour):
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def cielab(rgb):
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a, b):
    low, high = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] for c in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_are_told_apart_with_every_vision(theme):
    css = (resources.files("lpsgd.lab.report") / "templates/frame.css").read_text()
    named = dict(re.findall(r"--([\w-]+): light-dark\((#\w+, #\w+)\)", css))
    colours = {name: pair.split(", ")[theme] for name, pair in named.items()}
    series = [colour for name, colour in colours.items() if name.startswith("series")]
    assert len(series) == 6
    for colour in series:
        assert contrast(colour, colours["card"]) >= 3
    for vision in VISIONS.values():
        for a, b in itertools.combinations(series, 2):
            assert np.linalg.norm(cielab(vision @ linear(a)) - cielab(vision @ linear(b))) > 20
    for text, ground in (("ink", "ground"), ("soft", "ground"), ("soft", "card"), ("ink", "card")):
        assert contrast(colours[text], colours[ground]) >= 4.5
    for kind in ("good", "bad", "open", "accent"):
        assert contrast(colours[kind], colours[f"{kind}-ground"]) >= 4.5


# --- in the browser ---------------------------------------------------------------------------


WINDOW = {"width": 1280, "height": 900}


class Opened:
    """A page in the browser, with everything that it asked for and complained of."""

    def __init__(self, browser, path: Path) -> None:
        self.context = browser.new_context(viewport=WINDOW, color_scheme="light", offline=True)
        self.tab = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.tab.goto(path.as_uri())
        self.tab.wait_for_selector("#chart-lr .main-svg")

    def reset(self) -> None:
        """Undo what a test chose, without loading the page again, which takes a second."""
        for choice in ("band", "across", "part"):
            self.tab.locator(f"#{choice}").select_option(index=0)
        off = self.tab.locator("#toggles button[aria-pressed=false]")
        while off.count():
            off.first.click()
        self.tab.set_viewport_size(WINDOW)

    def column(self, table: str, number: int) -> list[str]:
        cells = self.tab.locator(f"#{table} tbody tr > :nth-child({number})")
        return [text.split("\n")[0].strip() for text in cells.all_inner_texts()]

    def lines(self, chart: str) -> list[str]:
        """The names of the mean lines that a chart shows."""
        return self.tab.evaluate(
            "id => document.querySelector(`#chart-${id} .plot`).data"
            ".filter(t => t.hoverinfo === 'none')"
            ".map(t => document.querySelectorAll('#toggles button')[t.meta].textContent)",
            chart,
        )

    def hover(self, chart: str, share: float) -> str:
        """Point at a chart, ``share`` of its width from the left, and read what appears."""
        plot = self.tab.locator(f"#chart-{chart} .nsewdrag").first
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        x, y = box["x"] + share * box["width"], box["y"] + 0.5 * box["height"]
        self.tab.mouse.move(x - 3, y)
        self.tab.mouse.move(x, y)
        readout = self.tab.locator(f"#chart-{chart} .readout")
        readout.wait_for()
        return readout.inner_text()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    folder = write_comparison(root / "c", FINALS, p_max={"lpsgdm": 6.0})
    for path in folder.glob("runs/optimizer-0/*/metrics.jsonl"):  # all seeds meet in epoch 3
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[2]["train_top1"] = 70.0
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_comparison_page(analyse(load_comparison(folder)), root / "page.html")
    return root / "page.html"


@pytest.fixture(scope="module")
def shared(browser, page_file):
    opened = Opened(browser, page_file)
    yield opened
    opened.context.close()


@pytest.fixture
def opened(shared, page_file):
    yield shared
    shared.reset()
    assert shared.complaints == []
    assert [url for url in shared.requests if url != "data:,"] == [page_file.as_uri()]


def test_verdict_stands_at_the_top(opened):
    lead = opened.tab.locator("#verdict .lead")
    assert lead.inner_text() == "Better than sgd on test accuracy: lpsgdm."
    assert lead.bounding_box()["y"] < 200


def test_table_sorts_by_a_column_both_ways(opened):
    assert opened.column("results", 1) == ["sgd reference", "adamw", "lpsgdm"]
    head = opened.tab.locator("#results thead th").nth(2)
    head.locator("button").click()
    assert opened.column("results", 3) == ["90.36", "90.38", "92.38"]
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert opened.column("results", 1) == ["lpsgdm", "adamw", "sgd reference"]
    assert head.get_attribute("aria-sort") == "descending"
    opened.tab.locator("#results thead button").first.click()
    assert opened.column("results", 1) == ["adamw", "lpsgdm", "sgd reference"]
    assert head.get_attribute("aria-sort") == "none"


def test_sorting_goes_by_the_value_not_the_text_and_missing_comes_last(opened):
    p_value = opened.tab.locator("#tests-test_top1 thead button").nth(3)
    p_value.click()
    assert opened.column("tests-test_top1", 4) == ["<0.001", "0.847"]
    p_value.click()
    assert opened.column("tests-test_top1", 4) == ["0.847", "<0.001"]
    first = "document.querySelector('#tests-test_top1 td:nth-child(4)')"
    opened.tab.evaluate(f"{first}.removeAttribute('data-value')")
    for _ in range(2):
        p_value.click()
        assert opened.column("tests-test_top1", 4) == ["<0.001", "0.847"]


def test_hover_shows_values_and_spread(opened):
    text = opened.hover("test_top1", 0.99)
    assert text.split("\n") == [
        "epoch 5",
        "lpsgdm\t92.38\t91.60 to 92.80 (5 seeds)",
        "adamw\t90.38\t89.60 to 91.10 (5 seeds)",
        "sgd\t90.36\t89.50 to 91.00 (5 seeds)",
    ]
    assert "6.000" in opened.hover("p", 0.01)
    opened.tab.mouse.move(0, 0)
    opened.tab.locator("#chart-p .readout").wait_for(state="hidden")


def test_toggle_hides_and_shows_the_curves_of_an_optimizer(opened):
    button = opened.tab.locator("#toggles button", has_text="adamw")
    assert opened.lines("test_top1") == ["sgd", "adamw", "lpsgdm"]
    before = opened.tab.locator("#chart-test_top1 .scatterlayer .trace").count()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for chart in ("test_top1", "test_nll", "train_nll", "lr"):
        assert opened.lines(chart) == ["sgd", "lpsgdm"]
    assert opened.tab.locator("#chart-test_top1 .scatterlayer .trace").count() == before - 2
    assert "adamw" not in opened.hover("test_top1", 0.99)
    button.click()
    assert opened.lines("test_top1") == ["sgd", "adamw", "lpsgdm"]
    button.dblclick()
    assert opened.lines("test_nll") == ["adamw"]


def test_only_optimizers_with_p_are_in_its_chart(opened):
    assert opened.lines("p") == ["lpsgdm"]


def test_bands_time_and_the_end_of_a_run(opened):
    tab = opened.tab
    count = "document.querySelector('#chart-test_top1 .plot').data.length"
    assert tab.evaluate(count) == 6
    tab.select_option("#band", "seeds")
    assert tab.evaluate(count) == 3 + 15
    tab.select_option("#band", "none")
    assert tab.evaluate(count) == 3
    tab.select_option("#band", "interval")
    assert "91.73 to 93.03 (5 seeds)" in opened.hover("test_top1", 0.99)
    tab.select_option("#across", "seconds")
    plot = "document.querySelector('#chart-test_top1 .plot')"
    assert tab.evaluate(f"{plot}.data.at(-1).x") == [9, 11, 13, 15, 17]
    assert tab.evaluate(f"{plot}.layout.xaxis.title.text") == "training time (s)"
    tab.select_option("#part", "0.5")
    assert tab.evaluate(f"{plot}.data.at(-1).x") == [13, 15, 17]


def test_band_narrows_to_the_line_where_all_seeds_agree(opened):
    band = opened.tab.evaluate(
        "document.querySelector('#chart-train_top1 .plot').data.find(t => t.fill && t.meta === 0)"
    )
    assert band["x"] == [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]
    assert band["y"][2] == band["y"][7] == 70


def test_axes_have_units_and_more_charts_open(opened):
    titles = "[...document.querySelectorAll('.plot')].map(p => p.layout.yaxis.title.text)"
    assert opened.tab.evaluate(titles)[:2] == ["top-1 accuracy (%)", "NLL (nats)"]
    assert opened.tab.locator("#chart-grad_density").count() == 0
    opened.tab.locator("#inside > summary").click()
    opened.tab.wait_for_selector("#chart-grad_density .main-svg")
    assert opened.lines("grad_density") == ["sgd", "adamw", "lpsgdm"]


def test_settings_and_environment_of_every_run(opened):
    assert opened.tab.locator("#every details").count() == 15
    opened.tab.locator("#every > summary").click()
    run = opened.tab.locator("#every details").nth(14)
    run.locator("summary").click()
    text = run.inner_text()
    for part in (
        "lpsgdm, seed 4 (complete)",
        "optimizer.settings.lr",
        "0.1",
        "A processor",
        "2.13.0",
    ):
        assert part in text


GROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(251, 251, 250)", "rgb(18, 20, 23)"


def test_theme_follows_the_system_until_the_reader_chooses(browser, page_file):
    opened = Opened(browser, page_file)
    ink = "document.querySelector('.plot').layout.font.color"
    assert (opened.tab.evaluate(GROUND), opened.tab.evaluate(ink)) == (LIGHT, "rgb(28, 30, 33)")
    opened.tab.emulate_media(color_scheme="dark")
    opened.tab.wait_for_timeout(200)
    assert (opened.tab.evaluate(GROUND), opened.tab.evaluate(ink)) == (DARK, "rgb(233, 235, 238)")
    button = opened.tab.locator("#theme")
    button.click()
    assert (button.inner_text(), opened.tab.evaluate(GROUND)) == ("Theme: light", LIGHT)
    button.click()
    assert (button.inner_text(), opened.tab.evaluate(GROUND)) == ("Theme: dark", DARK)
    opened.tab.reload()
    assert opened.tab.locator("#theme").inner_text() == "Theme: dark"
    assert opened.complaints == []
    opened.context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_page_is_never_wider_than_the_window(opened, width):
    opened.tab.set_viewport_size({"width": width, "height": 900})
    opened.tab.wait_for_timeout(500)  # plotly follows a new size after a moment
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
    columns = opened.tab.evaluate(
        "getComputedStyle(document.querySelector('.charts')).gridTemplateColumns.split(' ').length"
    )
    assert columns == (1 if width == 390 else 2)
    assert opened.tab.locator("#chart-lr .main-svg").first.bounding_box()["width"] < width / columns


def test_hostile_names_do_nothing(browser, tmp_path):
    fields = {"dataset": HOSTILE, "model": HOSTILE}
    rows = history(90.0, seed=0)
    for seed, place in enumerate(("a", "<b>")):
        write_run(
            tmp_path / place,
            HOSTILE,
            seed,
            rows,
            settings={HOSTILE: HOSTILE},
            **{**fields, HOSTILE: {HOSTILE: [HOSTILE]}},
        )
    write_run(tmp_path / "c", "sgd", 0, rows[:2], state="diverged", reason=HOSTILE, **fields)
    (tmp_path / "a/environment.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    write_comparison_page(analyse(load_comparison(tmp_path)), tmp_path / "page.html")
    opened = Opened(browser, tmp_path / "page.html")
    tab = opened.tab
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tab.wait_for_selector("#chart-grad_norm .main-svg")
    assert HOSTILE in tab.locator("h1").inner_text()
    assert HOSTILE in tab.locator("#toggles").inner_text()
    assert HOSTILE in opened.hover("test_top1", 0.99)
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("img, a, b:not(svg b)").count() == 0
    assert tab.locator("script").count() == 4  # data, theme, plotly and the page
    assert opened.complaints == []
    assert {url.split(":")[0] for url in opened.requests} <= {"file", "data"}
    opened.context.close()


def test_policy_stops_scripts_that_are_not_the_pages_own(browser, page_file, tmp_path):
    """Should escaping ever fail, the browser still refuses to run what was smuggled in."""
    text = page_file.read_text()
    smuggled = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'><h1>"
    (tmp_path / "page.html").write_text(text.replace("<h1>", smuggled, 1))
    opened = Opened(browser, tmp_path / "page.html")
    assert opened.tab.evaluate("window.hacked") is None
    assert any("Content Security Policy" in text for text in opened.complaints)
    opened.context.close()


def test_one_run_of_one_epoch(browser, tmp_path):
    write_run(tmp_path / "a", "sgd", 0, history(90.0, seed=0, epochs=1), epochs=1)
    write_comparison_page(analyse(load_comparison(tmp_path)), tmp_path / "page.html")
    opened = Opened(browser, tmp_path / "page.html")
    assert opened.lines("test_top1") == ["sgd"]
    assert "90.00" in opened.hover("test_top1", 0.5)
    assert "Only one optimizer (sgd)" in opened.tab.locator("#verdict").inner_text()
    assert opened.complaints == []
    opened.context.close()


def test_more_points_than_a_call_may_have_arguments(browser, tmp_path):
    epochs = 20_000  # ten charts of as many points: 200 000 in all
    write_run(tmp_path / "a", "sgd", 0, history(90.0, seed=0, epochs=epochs), epochs=epochs)
    write_comparison_page(analyse(load_comparison(tmp_path)), tmp_path / "page.html")
    opened = Opened(browser, tmp_path / "page.html")
    assert opened.lines("test_top1") == ["sgd"]
    assert opened.complaints == []
    opened.context.close()


def test_folder_whose_name_is_not_utf8_and_row_without_a_number(tmp_path):
    folder = write_comparison(tmp_path / "bad\udcff", {"sgd": [90.0, 91.0], "lion": [91.0, 92.0]})
    metrics = folder / "runs/optimizer-0/seed-0/metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"epoch": 2', '"epoch": null'))
    analysis = analyse(load_comparison(folder))
    assert chart_data(analysis)["optimizers"][0]["lines"]["lr"]["epoch"] == [1, 2, 3, 4, 5]
    write_comparison_page(analysis, tmp_path / "page.html")
    assert "bad\\udcff" in (tmp_path / "page.html").read_text(encoding="utf-8")
