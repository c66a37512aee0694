"""Figures and tables from records alone."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

from lpsgd.curvature import CurvatureMonitor, read_records
from lpsgd.lab.spectra.figures import (
    density_figure,
    evolution_figure,
    layers_figure,
    save_figure,
)
from lpsgd.lab.spectra.tables import write_tables
from tests.curvature.nets import CE, convolution


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    problem, folder = convolution("batch"), tmp_path_factory.mktemp("run")
    monitor = CurvatureMonitor(
        problem.model,
        CE,
        problem.batches,
        folder,
        lanczos=24,
        modules="*",
        batchnorm="batch",
        stream=None,
    )
    for epoch in (0, 20, 40):
        monitor(epoch)
        with torch.no_grad():
            problem.model[-1].weight.mul_(0.5)
    return read_records(folder / "curvature.jsonl")


def test_figures_are_written_as_svg_and_png(records, tmp_path):
    for name, draw, source in (
        ("density", density_figure, records[0]),
        ("evolution", evolution_figure, records),
        ("layers", layers_figure, records[-1]),
    ):
        svg, png = save_figure(draw(source), tmp_path / "figures" / name)
        assert svg.read_text(encoding="utf-8").startswith("<?xml")
        assert png.read_bytes().startswith(b"\x89PNG")
        before = svg.read_bytes()
        save_figure(draw(source), tmp_path / "figures" / name)
        assert svg.read_bytes() == before


def test_density_is_on_a_log_axis_with_the_outliers_marked(records):
    (axes,) = density_figure(records[0]).axes
    assert axes.get_yscale() == "log"
    numbers = records[0]["statistics"]
    marked = next(line for line in axes.lines if line.get_marker() == "^").get_xdata()
    assert list(marked) == [*numbers["outliers"], *numbers["negative_outliers"]]


def shaded(axes):
    """The range of each filled curve: its smallest and largest eigenvalue."""
    edges = [filled.get_paths()[0].vertices[:, 0] for filled in axes.collections]
    return [(float(edge.min()), float(edge.max())) for edge in edges]


def test_nothing_is_shaded_where_there_is_no_eigenvalue(records):
    supports = [(min(map(min, r["nodes"])), max(map(max, r["nodes"]))) for r in records]
    (axes,) = density_figure(records[0]).axes
    assert shaded(axes) == [pytest.approx(supports[0])]
    for scale in ("linear", "asinh"):
        (axes,) = evolution_figure(records, scale).axes
        assert shaded(axes) == [pytest.approx(support) for support in supports]


def test_evolution_has_eigenvalues_across_and_epochs_up(records):
    (axes,) = evolution_figure(records).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "20", "40"]
    assert "eigenvalue" in axes.get_xlabel()
    low, high = axes.get_xlim()
    values = np.concatenate([nodes for record in records for nodes in record["nodes"]])
    assert low < values.min()
    assert high > values.max()
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    counts = [
        len(r["statistics"]["outliers"]) + len(r["statistics"]["negative_outliers"])
        for r in records
    ]
    assert [len(line.get_xdata()) for line in dots] == [count for count in counts if count]


def test_layers_stand_in_the_order_of_the_network(records):
    (axes,) = layers_figure(records[-1]).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[::-1] == ["0", "1", "4", "5", "8"]
    assert axes.get_xscale() == "asinh"


def test_a_spectrum_that_is_zero_can_be_drawn(records):
    zero = {
        **records[0],
        "nodes": [[0.0]],
        "weights": [[1.0]],
        "residuals": [[0.0]],
        "statistics": {
            **records[0]["statistics"],
            "lambda_max": 0.0,
            "lambda_min": 0.0,
            "anisotropy": None,
            "outliers": [],
            "negative_outliers": [],
        },
    }
    assert "undefined" in density_figure(zero).axes[0].get_title(loc="left")
    assert evolution_figure([zero]).axes


def test_tables_hold_every_number(records, tmp_path):
    statistics, nodes, plain = write_tables(records, tmp_path)
    rows = list(csv.DictReader(statistics.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 3 * 6
    assert float(rows[0]["lambda_max"]) == records[0]["statistics"]["lambda_max"]
    assert {row["batchnorm"] for row in rows} == {"batch"}
    assert [row["layer"] for row in rows[:6]] == ["", "0", "1", "4", "5", "8"]
    assert float(rows[1]["gradient_density"]) == records[0]["gradient_density"]["layers"]["0"]
    lines = nodes.read_text(encoding="utf-8").splitlines()
    quadrature = [row for row in csv.DictReader(lines) if not row["layer"]]
    assert len(quadrature) == 3 * 2 * 24
    assert float(quadrature[0]["node"]) == records[0]["nodes"][0][0]
    assert json.loads(plain.read_text())[0]["lambda_max"] == records[0]["statistics"]["lambda_max"]


def test_wrong_input_names_itself(records):
    with pytest.raises(ValueError, match="records must hold at least one"):
        evolution_figure([])
    with pytest.raises(ValueError, match="epoch 0 has no layers"):
        layers_figure({**records[0], "layers": {}})
    with pytest.raises(ValueError, match="scale must be 'linear' or 'asinh', not 'log'"):
        evolution_figure(records, "log")
