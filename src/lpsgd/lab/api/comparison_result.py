"""What `lpsgd.lab.compare` returns: the analysis of a comparison, shown where the user is."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.store.run_record import load_comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from lpsgd.lab.analysis.comparison import Analysis

_WIDTH = 100  # characters of the text form


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """A comparison and what it shows. In a notebook it is displayed with its curves.

    Attributes:
        folder: where the runs are.
        analysis: every number, as data.
        failed: which runs failed, and why; None if all ended.
    """

    folder: Path
    analysis: Analysis
    failed: str | None = None

    @classmethod
    def read(
        cls, folder: Path | str, reference: str | None = None, *, failed: str | None = None
    ) -> ComparisonResult:
        """The comparison in ``folder``, analysed anew."""
        comparison = load_comparison(folder)

        from lpsgd.lab.analysis.comparison import analyse  # scipy, once there is something

        return cls(Path(folder), analyse(comparison, reference), failed)

    @property
    def verdict(self) -> str:
        """What is shown, in sentences, the most important one first."""
        return "\n".join(filter(None, [*self.analysis.verdict, self.failed]))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each optimizer: means, deviations, tests, costs."""
        return [self._row(result) for result in self.analysis.results]

    def _row(self, result: Any) -> dict[str, Any]:
        row: dict[str, Any] = {"optimizer": result.label, "seeds": result.complete}
        for metric in self.analysis.metrics:
            final, versus = result.final[metric.key], result.versus.get(metric.key)
            row |= {metric.key: final.mean, f"{metric.key}_sd": final.sd}
            row[f"{metric.key}_difference"] = versus and versus.difference
            row[f"{metric.key}_p"] = versus and versus.p_holm
            row[f"{metric.key}_verdict"] = versus and versus.verdict
        row |= {"diverged": result.diverged, "seconds_per_step": result.step_seconds}
        return {**row, "state_bytes": result.state_bytes}

    @property
    def table(self) -> Any:
        """The rows as a pandas DataFrame if pandas is installed, else as a list."""
        try:
            from pandas import DataFrame
        except ImportError:
            return self.rows
        return DataFrame(self.rows).set_index("optimizer")

    @cached_property
    def page(self) -> Path:
        """The HTML page, which is written when it is first asked for."""
        path = self.folder / "report.html"
        with writing(self.folder):
            self.write_page(path)
        return path

    def write_page(self, path: Path) -> None:
        """Write the HTML page, which needs no other file, to ``path``."""
        from lpsgd.lab.report.comparison_page import write_comparison_page

        write_comparison_page(self.analysis, path)

    def figure(self, width: float | str | None = None) -> Figure:
        """The learning curves, drawn by matplotlib, as wide as a paper's template wants.

        Args:
            width: inches, or a template such as ``"icml"`` or ``"neurips"``.
        """
        from lpsgd.lab.report.figure import comparison_figure
        from lpsgd.lab.report.widths import TEXT, figure_width

        return comparison_figure(
            self.analysis, figure_width(None if width is None else str(width)) or TEXT
        )

    def to_latex(self) -> str:
        """The tables that are printed, for a paper: LaTeX with booktabs."""
        from lpsgd.lab.report.latex import to_latex
        from lpsgd.lab.report.source import comparison_source
        from lpsgd.lab.report.tables import comparison_tables

        source = comparison_source(self.analysis)
        return "\n".join(to_latex(table, source) for table in comparison_tables(self.analysis))

    def to_csv(self) -> str:
        """The rows as CSV, with all digits."""
        from lpsgd.lab.report.document import Table, to_csv

        columns = tuple(self.rows[0])
        return to_csv(Table("", "", columns, [tuple(row.values()) for row in self.rows]))

    def show(self, console: Console) -> None:
        """Print the tables and the verdict as the command does."""
        from lpsgd.lab.report.terminal import print_analysis

        print_analysis(self.analysis, console)

    def __repr__(self) -> str:
        from rich.console import Console

        text = StringIO()
        self.show(
            Console(
                file=text, width=_WIDTH, highlight=False, color_system=None, force_jupyter=False
            )
        )
        lines = [text.getvalue().strip("\n"), *([self.failed] if self.failed else [])]
        return "\n".join([*lines, f"Runs: {self.folder}"])

    def _repr_html_(self) -> str:
        from rich.console import Console

        console = Console(
            record=True, file=StringIO(), width=_WIDTH, highlight=False, force_jupyter=False
        )
        self.show(console)
        tables = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        drawn = StringIO()
        self.figure().savefig(drawn, format="svg", bbox_inches="tight")
        curves = drawn.getvalue()
        curves = curves[curves.index("<svg") :]
        failed = f"<p>{html.escape(self.failed)}</p>" if self.failed else ""
        return f"{failed}{tables}{curves}<p>Runs: <code>{html.escape(str(self.folder))}</code></p>"
