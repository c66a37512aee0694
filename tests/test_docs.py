"""The site: every block of Python runs, every picture is what the code draws, and it builds."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INCLUDE = re.compile(r'--8<-- "(.+)"\n')


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom, in one namespace. A page may write where the reader stands."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if not INCLUDE.fullmatch(block):  # an example, which has its own test
            exec(compile(block, page.name, "exec"), names)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_scripts_of_the_site_are_bash() -> None:
    texts = "\n".join(page.read_text() for page in PAGES)
    scripts = re.findall(r"^```(?:ba)?sh\n(#!.*?)^```", texts, re.DOTALL | re.MULTILINE)
    assert len(scripts) == 2  # torchrun and Ray on Slurm
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_every_example_is_on_the_site_and_has_a_test() -> None:
    included = {
        Path(path).name
        for page in PAGES
        for block in blocks(page)
        for path in INCLUDE.findall(block)
    }
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert {"hf_trainer.py", "lightning_module.py", "jax_loop.py"} <= included <= examples
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in examples:
        assert re.search(rf"\b{name.removesuffix('.py')}\b", tests), f"no test names {name}"


def script(name: str) -> Any:
    """A module of scripts/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe", reason="needs pip install 'lpsgd[docs]'")
    rst = script("rst_docstrings")
    text = "See :class:`~lpsgd.CosineP`, :math:`a\n  b`.\n\n.. math::\n    x &= 1\n\n>>> f()\n1\n"
    assert rst.to_markdown(text) == (
        "See `CosineP`, \\(a b\\).\n\n\n\\[\n\\begin{align*}\nx &= 1\n\\end{align*}\n\\]\n\n"
        "```pycon\n>>> f()\n1\n```\n"
    )


def test_bars_of_a_formula_stand_close() -> None:
    pytest.importorskip("latex2mathml", reason="needs pip install 'lpsgd[docs]'")
    page = script("mathml").on_page_content(r'<span class="arithmatex">\(|m|\)</span>')
    assert page.count('lspace="0" rspace="0">&#x0007C;</mo>') == 2


# --- the built site ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs pip install 'lpsgd[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    reference = (site / "api/index.html").read_text()
    for name in ("LPSGDM", "LPMuon", "CosineP", "PScheduler", "lp_direction"):
        assert f'id="lpsgd.{name}"' in reference or f'id="lpsgd.geometry.{name}"' in reference
    assert "Source code in" in reference
    assert "lpsgdm" in (site / "api-optax/index.html").read_text()
    assert "optimizer_cls_and_kwargs=(" in re.sub(
        "<[^>]*>", "", (site / "integrations/index.html").read_text()
    )


def test_the_home_opens_with_a_formula_a_figure_and_two_commands(site: Path) -> None:
    page = (site / "index.html").read_text()
    opening = page[page.index("<h1") : page.index("<h2")]
    assert opening.count("<math") >= 2
    assert opening.count("<img") == 1
    commands = re.sub("<[^>]*>", "", opening[opening.index("<pre") : opening.index("</pre")])
    assert len(commands.strip().splitlines()) == 2


@pytest.mark.slow
def test_the_link_to_the_source_is_the_publishers(site: Path, tmp_path: Path) -> None:
    assert "md-source" not in (site / "index.html").read_text()
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", str(tmp_path)]
    where = "https://example.org/someone/lpsgd"
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "REPOSITORY_URL": where})
    assert f'<a href="{where}"' in (tmp_path / "index.html").read_text()


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_pages_fit_and_ask_nobody_else(browser: Any, site: Path, address: str) -> None:
    """At 1280 pixels no block of code scrolls, on a phone no page does."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    wide, pages = {}, [path.parent.relative_to(site) for path in site.rglob("index.html")]
    assert len(pages) > 15
    for page in pages:
        tab.set_viewport_size({"width": 1280, "height": 900})
        tab.goto(f"{address}{page}/")
        tab.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
        wide[str(page)] = tab.evaluate(
            """[...document.querySelectorAll(".md-content pre, .md-content pre > code")]
                .filter((each) => each.scrollWidth > each.clientWidth + 1)
                .map((each) => each.innerText)"""
        )
        tab.set_viewport_size({"width": 400, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400, page
    context.close()
    assert {page: code for page, code in wide.items() if code} == {}
    assert [url for url in asked if not url.startswith((address, "data:"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("system", ["light", "dark"])
def test_figures_follow_the_switch(browser: Any, address: str, system: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=system)
    tab = context.new_page()
    tab.goto(f"{address}gallery/")
    figure = tab.locator("img[src$='curves.svg']")
    found = {}
    for chosen in (system, "light", "dark"):
        scheme = tab.get_attribute("body", "data-md-color-scheme")
        assert scheme == {"light": "default", "dark": "slate"}[chosen]
        pixels = np.asarray(Image.open(BytesIO(figure.screenshot())).convert("L"))
        found[scheme] = float(np.median(pixels)), float(abs(pixels - np.median(pixels)).max())
        other = "dark" if chosen == "light" else "light"
        assert tab.locator(f"img[src*='report-{chosen}.png']").is_visible()
        assert not tab.locator(f"img[src*='report-{other}.png']").is_visible()
        tab.locator("[data-md-component=palette] label:visible").click()
    context.close()
    (light, light_ink), (dark, dark_ink) = found["default"], found["slate"]
    assert light > 250
    assert dark < 60
    assert min(light_ink, dark_ink) > 150


# --- pictures ----------------------------------------------------------------------------------


def test_the_drawings_can_be_drawn_again(tmp_path: Path) -> None:
    drawings = script("draw_docs")
    drawings.main(list(drawings.DRAWINGS), tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(drawings.DRAWINGS)
    for path in tmp_path.iterdir():
        drawn, kept = path.read_text(), (ROOT / "docs/images" / path.name).read_text()
        if f"Matplotlib v{matplotlib.__version__}" in kept:  # another version draws other curves
            assert drawn == kept, f"draw {path.name} again"


def test_every_picture_is_in_the_gallery_with_the_command_that_makes_it() -> None:
    drawings = script("draw_docs")
    gallery = (ROOT / "docs/gallery.md").read_text()
    commands = re.sub(r" \\\n +", " ", gallery)  # lines that were broken for the page
    names = {f"{name}.svg" for name in drawings.DRAWINGS}
    for command in drawings.COMMANDS:
        for line in command.lines:
            assert f"\n{line}\n" in commands, line
        names |= {f"{name}.svg" for name in command.figures}
        names |= {f"{name}-{scheme}.png" for name in command.pages for scheme in ("light", "dark")}
    assert {path.name for path in (ROOT / "docs/images").iterdir()} == names
    for name in names:
        assert f"(images/{name}" in gallery, name
