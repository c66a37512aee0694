"""The numbers behind the figures, as CSV for people and JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lpsgd.lab.report.document import Cell, Table, to_csv
from lpsgd.lab.report.latex import to_latex
from lpsgd.lab.report.source import Source
from lpsgd.lab.spectra.records import CurvatureRecord, Spectrum
from lpsgd.lab.store.disk.files import write_text
from lpsgd.lab.store.disk.jsonio import write_json


def write_tables(
    records: Sequence[CurvatureRecord],
    folder: Path,
    *,
    latex: bool = False,
    source: Source | None = None,
) -> list[Path]:
    """Write ``spectrum.csv`` (statistics), ``nodes.csv`` (the quadratures) and ``spectrum.json``.

    Rows whose layer is empty are of the whole network. ``spectrum.tex`` has the statistics that a
    paper would print.
    """
    rows = list(statistics_rows(records))
    paths = [folder / name for name in ("spectrum.csv", "nodes.csv", "spectrum.json")]
    write_text(paths[0], _csv(rows))
    write_text(paths[1], _csv(list(_nodes(records))))
    write_json(paths[2], rows)
    if latex:
        paths.append(folder / "spectrum.tex")
        write_text(paths[-1], to_latex(summary_table(records), source))
    return paths


_SUMMARY = {
    "epoch": "epoch",
    "layer": "layer",
    "lambda_min": "smallest λ",
    "lambda_max": "largest λ",
    "anisotropy": "anisotropy",
    "effective_rank": "effective rank",
    "outlier_count": "outliers",
}


def summary_table(records: Sequence[CurvatureRecord]) -> Table:
    """What `lpsgd spectrum` prints of each epoch, and of each layer if they were measured."""
    left_out = () if any(record["layers"] for record in records) else ("layer",)
    shown = {key: name for key, name in _SUMMARY.items() if key not in left_out}
    rows = [[row[key] for key in shown] for row in statistics_rows(records)]
    rows = [["(all)" if cell == "" else cell for cell in row] for row in rows]
    kind = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix"}[records[-1]["kind"]]
    return Table("spectrum", f"Spectrum of the {kind}", tuple(shown.values()), rows)


def _parts(record: CurvatureRecord) -> Iterator[tuple[str, Spectrum]]:
    yield "", record
    yield from record["layers"].items()


def statistics_rows(records: Sequence[CurvatureRecord]) -> Iterator[dict[str, Any]]:
    """One row for the network and each layer at each epoch."""
    for record in records:
        densities = {
            "": record["gradient_density"]["overall"],
            **record["gradient_density"]["layers"],
        }
        for layer, part in _parts(record):
            yield {
                "epoch": record["epoch"],
                "layer": layer,
                "kind": record["kind"],
                "batchnorm": record["batchnorm"],
                "samples": record["samples"],
                "parameters": part["parameters"],
                **part["statistics"],
                "gradient_density": densities.get(layer),
            }


def _nodes(records: Sequence[CurvatureRecord]) -> Iterator[dict[str, Any]]:
    for record in records:
        for layer, part in _parts(record):
            runs = zip(part["nodes"], part["weights"], part["residuals"], strict=True)
            for probe, run in enumerate(runs):
                for node, weight, residual in zip(*run, strict=True):
                    yield {
                        "epoch": record["epoch"],
                        "layer": layer,
                        "probe": probe,
                        "node": node,
                        "weight": weight,
                        "residual": residual,
                    }


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    return to_csv(Table("", "", columns, cells))


def _cell(value: Any) -> Cell:
    return " ".join(repr(item) for item in value) if isinstance(value, list) else value
