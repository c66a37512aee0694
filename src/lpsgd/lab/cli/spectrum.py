"""``lpsgd spectrum``: the Hessian's spectrum of a run, as figures and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from lpsgd.lab.cli.options import (
    AllowImport,
    AsJson,
    FigureWidth,
    Latex,
    Root,
    find_modules_here,
    flag,
)
from lpsgd.lab.report.widths import figure_width as read_width
from lpsgd.lab.spectra.options import OPTIONS_HELP


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
    allow_import: AllowImport = False,
    latex: Latex = False,
    figure_width: FigureWidth = None,
    as_json: AsJson = False,
) -> None:
    """Draw and tabulate the spectrum of a run's Hessian.

    Writes the density on a log axis with its outliers, the evolution over epochs (eigenvalue
    across, epoch up) and, with `--layerwise`, the layers one above the other, each as SVG and PNG;
    the numbers as CSV and JSON. A run trained with `--curvature` is drawn from its record.

    Example: `lpsgd spectrum runs/digits-mlp-lpsgdm-1a2b3c4d --layerwise`
    """
    from lpsgd.lab import spectrum as measure
    from lpsgd.lab.report.source import this_command

    width = read_width(figure_width)
    find_modules_here({"allow_import": allow_import})
    result = measure(
        source,
        layerwise=layerwise,
        checkpoints=checkpoints,
        curvature=curvature,
        out=out,
        root=root,
        allow_import=allow_import,
    )
    files = result.write(latex=latex, width=width, source=this_command())
    if as_json:
        print(json.dumps({"rows": result.rows, "files": [str(path) for path in files]}, indent=2))
        return
    print(result)
    print("written: " + ", ".join(str(path) for path in files))
