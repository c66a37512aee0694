"""Shared by the tests of the laboratory: the command that is recorded, and a browser."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _called_as_a_user_would() -> Iterator[None]:
    """What plans record of the command line, however pytest and its workers were started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lpsgd", "command"])
        yield


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
