"""What `lpsgd.lab.spectrum` returns: the measurements, their tables and figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.spectra.measure import summary_line
from lpsgd.lab.spectra.records import CurvatureRecord
from lpsgd.lab.spectra.tables import statistics_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lpsgd.lab.report.source import Source


@dataclass(frozen=True, repr=False)
class SpectrumResult:
    """Measured spectra. In a notebook the density is displayed.

    Attributes:
        folder: where `write` puts tables and figures.
        records: every measurement, by epoch.
        subject: the one that is drawn where only one is.
    """

    folder: Path
    records: tuple[CurvatureRecord, ...]
    subject: CurvatureRecord

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The statistics of each measurement, and of each layer if they were measured."""
        return [dict(row) for row in statistics_rows(self.records)]

    def figures(self) -> dict[str, Figure]:
        """The density, its evolution over epochs and the layers, as far as they were measured."""
        from lpsgd.lab.spectra import figures

        drawn = {"density": figures.density_figure(self.subject)}
        if len(self.records) > 1:
            drawn["evolution"] = figures.evolution_figure(list(self.records))
        with_layers = [record for record in [*self.records, self.subject] if record["layers"]]
        if with_layers:
            drawn["layers"] = figures.layers_figure(with_layers[-1])
        return drawn

    def write(
        self,
        *,
        latex: bool = False,
        width: float | None = None,
        source: Source | None = None,
    ) -> list[Path]:
        """Write the tables, for a paper too if asked for, and the figures; return their files.

        ``width`` is the widest that a figure may be, in inches.
        """
        from lpsgd.lab.report.widths import fitting
        from lpsgd.lab.spectra.figures import save_figure
        from lpsgd.lab.spectra.tables import write_tables
        from lpsgd.lab.store.disk.files import writing

        with writing(self.folder), fitting(width):
            files = write_tables(self.records, self.folder, latex=latex, source=source)
            for name, figure in self.figures().items():
                files += save_figure(figure, self.folder / name, source=source)
        return files

    def __repr__(self) -> str:
        return "\n".join(summary_line(record) for record in self.records)

    def _repr_html_(self) -> str:
        import html

        drawn = StringIO()
        self.figures()["density"].savefig(drawn, format="svg", bbox_inches="tight")
        image = drawn.getvalue()
        return f"<pre>{html.escape(repr(self))}</pre>{image[image.index('<svg') :]}"
