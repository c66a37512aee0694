"""The frame of the paper's pages: one file each, no network, the reader's colours."""

from __future__ import annotations

from importlib import resources
from string import Template

import lpsgd
from lpsgd.lab.report.html import Html, content_policy, element, join


def page(title: str, subtitle: str, body: Html, *, style: str, script: str | None = None) -> str:
    """A whole page around ``body``; ``style`` names its CSS file, ``script`` its own script."""
    report_style = (resources.files("lpsgd.lab.report") / "page.css").read_text(encoding="utf-8")
    scripts = [asset(name) for name in ("theme.js", script) if name is not None]
    return Template(asset("shell.html")).substitute(
        policy=content_policy(scripts),
        title=join(title),
        subtitle=join(subtitle),
        style=report_style + asset(style),
        body=body,
        version=join(lpsgd.__version__),
        scripts=join(*(element("script", Html(source)) for source in scripts)),
    )


def asset(name: str) -> str:
    """A file that ships beside this one."""
    return (resources.files("lpsgd.lab.paper") / name).read_text(encoding="utf-8")
