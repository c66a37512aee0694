"""Figures and tables of the spectra in a ``curvature.jsonl``, and of nothing else."""

from __future__ import annotations

from lpsgd.lab.spectra.figures import density_figure, evolution_figure, layers_figure, save_figure
from lpsgd.lab.spectra.tables import write_tables

__all__ = ["density_figure", "evolution_figure", "layers_figure", "save_figure", "write_tables"]
