"""Shared by the tests of the laboratory's pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real, headless browser."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("the page tests need the program chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    arguments += ["--disable-component-update", "--disable-sync", "--no-first-run"]
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()
