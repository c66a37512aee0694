"""``lpsgd spectrum``: the Hessian's spectrum of a run, as figures and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lpsgd.lab.cli.options import AsJson, Latex, Root, flag
from lpsgd.lab.spectra.options import OPTIONS_HELP, parse_options

if TYPE_CHECKING:
    from lpsgd.lab.spectra.records import CurvatureRecord


def spectrum(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A run's folder, or one of the files in its checkpoints folder.",
            show_default=False,
        ),
    ],
    layerwise: Annotated[bool, flag("--layerwise", "Measure each layer's block too.")] = False,
    checkpoints: Annotated[
        Literal["last", "all", "none"] | None,
        typer.Option(
            metavar="last|all|none",
            help="Which to measure; none draws what training has recorded, as without options.",
            show_default=False,
        ),
    ] = None,
    curvature: Annotated[
        str,
        typer.Option(
            metavar="probes=2,...",
            help=f"How to measure. [default: {OPTIONS_HELP}]",
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For the results. [default: RUN/spectrum]")
    ] = None,
    root: Root = None,
    latex: Latex = False,
    as_json: AsJson = False,
) -> None:
    """Draw and tabulate the spectrum of a run's Hessian.

    Writes the density on a log axis with its outliers, the evolution over epochs (eigenvalue
    across, epoch up) and, with `--layerwise`, the layers one above the other, each as SVG and PNG;
    the numbers as CSV and JSON. A run trained with `--curvature` is drawn from its record.

    Example: `lpsgd spectrum runs/digits-mlp-lpsgdm-1a2b3c4d --layerwise`
    """
    from dataclasses import replace

    from lpsgd.lab.errors import UserError
    from lpsgd.lab.store.run_folder import run_of

    options = parse_options(curvature)
    if layerwise:
        options = replace(options, layers=True)
    folder = run_of(source)

    from lpsgd.curvature.monitor import FILE_NAME
    from lpsgd.lab.spectra.measure import measure_checkpoints
    from lpsgd.lab.spectra.records import read_curvature

    out = out or folder / "spectrum"
    recorded = folder / FILE_NAME
    records = read_curvature(recorded) if recorded.is_file() else {}
    enough = bool(records) and (not layerwise or any(r["layers"] for r in records.values()))
    if checkpoints is None:
        wanted = enough and source == folder and not curvature
        checkpoints = "none" if wanted else "last"
    if checkpoints != "none":
        path = out / FILE_NAME
        path.unlink(missing_ok=True)
        everyone = checkpoints == "all"
        measure_checkpoints(source, path, options, every_checkpoint=everyone, root=root)
        measured = read_curvature(path)
        # spectra in the other mode of batch norm are of another matrix
        alike = {e: r for e, r in records.items() if r["batchnorm"] == options.batchnorm}
        records, last = alike | measured, max(measured)
    elif not records:
        raise UserError(f"--checkpoints none: {folder} has no {FILE_NAME} to draw")
    elif layerwise and not enough:
        raise UserError(f"--checkpoints none: {recorded} has no layers to draw with --layerwise")
    else:
        last = max(records)
    found = [records[epoch] for epoch in sorted(records)]
    _write(found, records[last], out, latex=latex, as_json=as_json)


def _write(
    records: list[CurvatureRecord],
    subject: CurvatureRecord,
    out: Path,
    *,
    latex: bool,
    as_json: bool,
) -> None:
    """Write the tables of all records, and the figures, of ``subject`` where only one is drawn."""
    import json

    from lpsgd.lab.report.source import this_command
    from lpsgd.lab.spectra import figures
    from lpsgd.lab.spectra.measure import summary_line
    from lpsgd.lab.spectra.tables import statistics_rows, write_tables
    from lpsgd.lab.store.disk.files import writing

    drawn = {"density": figures.density_figure(subject)}
    if len(records) > 1:
        drawn["evolution"] = figures.evolution_figure(records)
    with_layers = [record for record in [*records, subject] if record["layers"]]
    if with_layers:
        drawn["layers"] = figures.layers_figure(with_layers[-1])
    source = this_command()
    with writing(out):
        files = write_tables(records, out, latex=latex, source=source)
        for name, figure in drawn.items():
            files += figures.save_figure(figure, out / name, source=source)
    if as_json:
        rows = list(statistics_rows(records))
        print(json.dumps({"rows": rows, "files": [str(path) for path in files]}, indent=2))
        return
    for record in records:
        print(summary_line(record))
    print("written: " + ", ".join(str(path) for path in files))
