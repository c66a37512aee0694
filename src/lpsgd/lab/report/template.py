"""The frame of every page: one file that needs no network, in the reader's colours."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from string import Template

import lpsgd
from lpsgd.lab.report.html import Html, content_policy, element, join

MADE_BY = f"Made by lpsgd {lpsgd.__version__}"


def frame(
    title: str,
    subtitle: str,
    body: Html,
    *,
    footer: Html | None = None,
    style: str = "",
    scripts: Sequence[str] = (),
) -> str:
    """A whole page around ``body``, with what ``style`` and ``scripts`` add to the frame's own."""
    scripts = [asset(__package__, "templates/theme.js"), *scripts]
    return Template(asset(__package__, "templates/frame.html")).substitute(
        policy=content_policy(scripts),
        title=join(title),
        subtitle=join(subtitle),
        style=asset(__package__, "templates/frame.css") + style,
        body=body,
        footer=footer or element("p", f"{MADE_BY}. No network is used."),
        scripts=join(*(element("script", Html(source)) for source in scripts)),
    )


def asset(package: str, name: str) -> str:
    """The text of a file that ships in ``package``."""
    return (resources.files(package) / name).read_text(encoding="utf-8")
