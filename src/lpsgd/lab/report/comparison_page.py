"""The analysis as one HTML page that needs no server, no network and no other file."""

from __future__ import annotations

from pathlib import Path
from string import Template

from lpsgd.lab.analysis.comparison import Analysis
from lpsgd.lab.report import tables
from lpsgd.lab.report.charts import chart_data
from lpsgd.lab.report.html import Html, element, embedded_json, join
from lpsgd.lab.report.template import MADE_BY, asset, frame
from lpsgd.lab.report.words import subtitle, title
from lpsgd.lab.store.files import write_text


def write_page(analysis: Analysis, path: Path | str) -> None:
    """Write the page to ``path``, whole or not at all."""
    write_text(Path(path), page(analysis))


def page(analysis: Analysis) -> str:
    """The page's text. Everything that comes from a file of the runs is escaped."""
    from plotly.offline import get_plotlyjs

    return frame(
        title(analysis),
        subtitle(analysis),
        _body(analysis),
        footer=_footer(analysis),
        scripts=[get_plotlyjs(), asset(__package__, "templates/comparison.js")],
    )


def _body(analysis: Analysis) -> Html:
    body = Template(asset(__package__, "templates/comparison.html")).substitute(
        verdict=_verdict(analysis),
        results=tables.results(analysis),
        tests=tables.tests(analysis),
        costs=tables.costs(analysis),
        settings=tables.settings(analysis),
        runs=tables.runs(analysis),
        data=embedded_json(chart_data(analysis)),
    )
    return Html(body)


def _verdict(analysis: Analysis) -> Html:
    first, *rest = analysis.verdict
    parts = [element("p", first, class_="lead"), *(element("p", line) for line in rest)]
    if analysis.details:
        items = (element("li", text) for text in analysis.details)
        summary = element("summary", "Every comparison in words")
        parts.append(element("details", summary, element("ul", *items)))
    if analysis.notes:
        items = (element("li", text) for text in analysis.notes)
        parts.append(element("ul", *items, class_="notes"))
    return join(*parts)


def _footer(analysis: Analysis) -> Html:
    parts = [element("p", f"{MADE_BY} from ", element("code", analysis.folder), ".")]
    if analysis.command:
        parts.append(element("p", "Command: ", element("code", analysis.command)))
    return join(*parts)
