"""The monitor's records, its schedule, what it prints, and the package without its extra."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lpsgd.curvature import (
    CurvatureMonitor,
    SpectralDensity,
    hessian_operator,
    read_records,
    spectral_density,
    statistics,
)
from lpsgd.curvature.hessian import HessianOperator
from lpsgd.curvature.monitor import append_record
from lpsgd.curvature.progress import progress
from tests.curvature.nets import CE, convolution, mlp


def test_a_record_holds_all_that_is_needed_to_redraw(tmp_path):
    problem = mlp()
    monitor = CurvatureMonitor(
        problem.model, CE, problem.batches, tmp_path, lanczos=12, seed=3, modules="*", stream=None
    )
    monitor(4, step=100, p=5.5)
    (record,) = read_records(tmp_path / "curvature.jsonl")
    operator = hessian_operator(problem.model, CE, problem.batches)
    density = spectral_density(operator, 2, 12, seed=3)
    assert np.array_equal(SpectralDensity.from_dict(record).nodes, density.nodes)
    assert np.array_equal(SpectralDensity.from_dict(record).weights, density.weights)
    expected = json.loads(json.dumps(statistics(density).to_dict()))
    assert {name: record["statistics"][name] for name in expected} == expected
    assert 0 <= record["statistics"]["diagonal_concentration"] <= 1
    chosen = ("epoch", "step", "p", "batchnorm", "kind", "samples", "probes", "lanczos", "seed")
    assert [record[name] for name in chosen] == [4, 100, 5.5, "eval", "hessian", 12, 2, 12, 3]
    assert list(record["layers"]) == ["0", "2"]
    assert record["layers"]["2"]["parameters"] == 21
    gradient = operator.gradient()
    expected = float(gradient.abs().sum() ** 2 / (51 * gradient.square().sum()))
    assert record["gradient_density"]["overall"] == pytest.approx(expected, rel=1e-12)
    assert list(record["gradient_density"]["layers"]) == ["0", "2"]


def test_batch_norm_mode_is_written_down(tmp_path):
    problem = convolution("batch")
    monitor = CurvatureMonitor(
        problem.model, CE, problem.batches, tmp_path, lanczos=2, batchnorm="batch", stream=None
    )
    assert monitor(0)["batchnorm"] == "batch"


def test_divergence_does_not_end_the_training(tmp_path):
    problem = mlp()
    with torch.no_grad():
        problem.model[0].weight.fill_(torch.nan)
    monitor = CurvatureMonitor(problem.model, CE, problem.batches, tmp_path, stream=None)
    with pytest.warns(RuntimeWarning, match="epoch 3 was left out: the Hessian is not finite"):
        assert monitor(3) is None
    assert not monitor.path.exists()


def test_schedules():
    problem = mlp()

    def epochs(every):
        monitor = CurvatureMonitor(problem.model, CE, problem.batches, every=every)
        return [epoch for epoch in range(12) if monitor.due(epoch)]

    assert epochs(5) == [0, 5, 10]
    assert epochs(lambda epoch: epoch in (1, 11)) == [1, 11]


def test_the_same_samples_are_used_every_time(tmp_path):
    problem = mlp()
    x = torch.cat([x for x, _ in problem.batches])
    y = torch.cat([y for _, y in problem.batches])
    loader = DataLoader(TensorDataset(x, y), 4, shuffle=True)
    monitor = CurvatureMonitor(
        problem.model, CE, loader, tmp_path, samples=10, lanczos=5, stream=None
    )
    first, second = monitor(0), monitor(1)
    assert first["samples"] == 10
    assert first["nodes"] == second["nodes"]


def test_it_says_what_it_will_take_once(tmp_path):
    problem, stream = mlp(), io.StringIO()
    monitor = CurvatureMonitor(
        problem.model, CE, problem.batches, tmp_path, lanczos=8, modules="*", stream=stream
    )
    monitor(0)
    monitor(1)
    first, second = stream.getvalue().splitlines()
    assert first == (
        "curvature: 51 parameters, 12 samples, 2 probes of 8 Lanczos steps, 2 layers: "
        "56 products for each measurement; timing one"
    )
    assert second.startswith("curvature: each measurement takes about 0:00:0")
    assert "for the Lanczos basis" in second


def test_it_says_what_it_measures_before_the_first_product(tmp_path, monkeypatch):
    """A product of a large network takes a minute, and nothing may be silent for so long."""
    problem, stream, said = mlp(), io.StringIO(), []

    def look(operator, vector):
        said.append(stream.getvalue())
        return product(operator, vector)

    product = HessianOperator.__matmul__
    monkeypatch.setattr(HessianOperator, "__matmul__", look)
    monitor = CurvatureMonitor(problem.model, CE, problem.batches, tmp_path, stream=stream)
    monitor(0)
    assert said[0].startswith("curvature: 51 parameters")


def test_cost_counts_the_basis_and_the_graphs():
    from lpsgd.curvature import measure_cost

    problem = mlp()
    operator = hessian_operator(problem.model, CE, problem.batches)
    cost = measure_cost(operator, 100, 20)
    assert cost.basis_bytes == 20 * 51 * 8
    assert cost.graph_bytes == operator.graph_bytes > 0
    assert cost.seconds > 0
    times = [str(replace(cost, seconds=s)).split(";")[0] for s in (0.44, 12.2, 185, 3723)]
    assert times == [f"about {t}" for t in ("0:00:01", "0:00:13", "0:03:05", "1:02:03")]


def test_plain_lines_give_the_time_left(monkeypatch):
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    stream = io.StringIO()
    with progress("curvature", 10, stream) as advance:
        for _ in range(10):
            advance()
    assert stream.getvalue().splitlines()[0] == "curvature: 2/10 products, 0:00:48 left"
    assert len(stream.getvalue().splitlines()) == 4


def test_a_terminal_gets_a_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with progress("curvature at epoch 5", 3, stream) as advance:
        for _ in range(3):
            advance()
    assert "curvature at epoch 5" in stream.getvalue()
    assert "3/3" in stream.getvalue()


def test_half_lines_and_repeated_epochs(tmp_path):
    path = tmp_path / "curvature.jsonl"
    append_record(path, {"epoch": 0, "value": 1})
    with path.open("a") as stream:
        stream.write('{"epoch": 5, "val')  # killed while writing
    append_record(path, {"epoch": 5, "value": float("nan")})
    append_record(path, {"epoch": 0, "value": 2})
    assert read_records(path) == [{"epoch": 0, "value": 2}, {"epoch": 5, "value": None}]


@pytest.mark.parametrize("line", ["5", "null", '{"value": 1}', '{"epoch": "x"}', '{"epoch": [1]}'])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    path = tmp_path / "curvature.jsonl"
    path.write_bytes(b'{"epoch": 0}\n\xff\xfe\n')  # bytes that are no text are half a line
    assert read_records(path) == [{"epoch": 0}]
    with path.open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(ValueError, match="curvature.jsonl, line 3: expected a record"):
        read_records(path)


def test_wrong_arguments_name_themselves():
    problem = mlp()
    for options, text in (
        ({"every": 0}, "every must be at least 1, not 0"),
        ({"probes": 0}, "probes must be at least 1, not 0"),
        ({"lanczos": -1}, "lanczos must be at least 1, not -1"),
        ({"samples": 0}, "samples must be at least 1, not 0"),
        ({"diagonal_probes": 1}, "diagonal_probes must be 0 or at least 2, not 1"),
    ):
        with pytest.raises(ValueError, match=text):
            CurvatureMonitor(problem.model, CE, problem.batches, **options)


def test_fewer_samples_than_processes_are_refused_by_all_of_them(monkeypatch):
    problem = mlp()
    for rank in range(2):  # one that went on would wait for the other for ever
        monkeypatch.setattr("lpsgd.curvature.monitor._place", lambda _, rank=rank: (rank, 2))
        with pytest.raises(ValueError, match="samples must be at least 2, not 1: one for each"):
            CurvatureMonitor(problem.model, CE, problem.batches, samples=1)


@pytest.mark.parametrize("missing", ["scipy", "numpy"])
def test_without_the_extra_it_says_how_to_install_it(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import lpsgd.curvature"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"lpsgd.curvature needs the package {missing!r}" in result.stderr
    assert "pip install 'lpsgd[curvature]'" in result.stderr


def test_nothing_but_torch_numpy_and_scipy_is_needed():
    blocked = ("rich", "typer", "pydantic", "matplotlib", "sklearn", "tqdm", "curvlinops")
    code = (
        f"import sys; [sys.modules.__setitem__(name, None) for name in {blocked}];"
        "import torch, io; from lpsgd.curvature import *;"
        "m = CurvatureMonitor(torch.nn.Linear(2, 1), torch.nn.MSELoss(),"
        "(torch.ones(3, 2), torch.ones(3, 1)), sys.argv[1], stream=sys.stderr); m(0)"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True)
        assert len(read_records(f"{folder}/curvature.jsonl")) == 1
