"""``lpsgd train --curvature`` and ``lpsgd spectrum``, on small real runs."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from lpsgd.curvature import hessian_operator, read_records, spectral_density
from lpsgd.lab import models
from lpsgd.lab.cli import app as cli
from lpsgd.lab.errors import UserError
from lpsgd.lab.spectra.options import CurvatureOptions, parse_options
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from tests.lab.small_runs import CPU, StopAfter, assert_same_run, load, load_weights, small_recipe

CURVATURE = "every=2,probes=1,lanczos=6,samples=40,layers=true"
FLAGS = (
    "--train-size 128 --test-size 64 --batch-size 32 --width 8 --epochs 3 --optimizer sgd:lr=0.05"
)


@pytest.fixture(scope="module")
def recorded_run(tmp_path_factory):
    """The folder of a run that was trained with --curvature."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    command = ["train", *FLAGS.split(), "--out", str(folder), "--curvature", CURVATURE]
    assert cli.main(command) == 0
    return folder


def test_training_writes_spectra_at_the_start_when_due_and_at_the_end(recorded_run):
    records = read_records(recorded_run / "curvature.jsonl")
    assert [record["epoch"] for record in records] == [0, 2, 3]
    assert [record["step"] for record in records] == [0, 8, 12]
    first = records[0]
    assert (first["samples"], first["probes"], first["lanczos"]) == (40, 1, 6)
    assert first["batchnorm"] == "eval"
    assert set(first["layers"]) == set(first["gradient_density"]["layers"])


def test_the_record_is_of_the_training_loss_on_plain_training_examples(recorded_run):
    """The last record, measured again from the final checkpoint by hand."""
    recipe = small_recipe(epochs=3)
    data = load(recipe)
    model = models.create("mlp", input_shape=data.input_shape, classes=data.classes, width=8)
    model.load_state_dict(load_weights(recorded_run)["trainer"]["model"])
    batches = list(data.train.plain())
    x = torch.cat([x for x, _ in batches])[:40]
    y = torch.cat([y for _, y in batches])[:40]
    operator = hessian_operator(model.to(CPU), torch.nn.CrossEntropyLoss(), (x, y))
    nodes = spectral_density(operator, 1, 6).nodes[0]
    recorded = read_records(recorded_run / "curvature.jsonl")[-1]["nodes"][0]
    assert np.allclose(nodes, recorded, rtol=1e-4, atol=1e-5)


def test_training_is_the_same_with_and_without(tmp_path):
    recipe = small_recipe("lpsgdm:lr=1e-3")
    train(recipe, tmp_path / "without")
    train(recipe, tmp_path / "with", options=RunOptions(curvature=CURVATURE))
    assert_same_run(tmp_path / "with", tmp_path / "without")


def test_a_run_stopped_while_measuring_resumes_to_the_same_end(tmp_path):
    from lpsgd.lab.errors import Interrupted

    recipe, options = small_recipe(), RunOptions(curvature=CURVATURE)
    train(recipe, tmp_path / "whole", options=options)
    stops = 0
    for patience in (3, 12, 25, 40, 1000):
        try:
            train(recipe, tmp_path / "parts", options=options, stop=StopAfter(patience))
        except Interrupted:
            stops += 1
    assert stops >= 3
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    whole, parts = (
        read_records(tmp_path / name / "curvature.jsonl") for name in ("whole", "parts")
    )
    assert [r["nodes"] for r in whole] == [r["nodes"] for r in parts]


def test_spectrum_draws_what_training_recorded(recorded_run, tmp_path, capsys):
    before = (recorded_run / "curvature.jsonl").read_bytes()
    assert (
        cli.main(["spectrum", str(recorded_run), "--layerwise", "--latex", "--out", str(tmp_path)])
        == 0
    )
    names = {path.name for path in tmp_path.iterdir()}
    figures = {f"{n}.{s}" for n in ("density", "evolution", "layers") for s in ("svg", "png")}
    assert names == figures | {"spectrum.csv", "spectrum.json", "nodes.csv", "spectrum.tex"}
    assert r"smallest $\lambda$" in (tmp_path / "spectrum.tex").read_text()
    assert "curvature at epoch 3: λ from" in capsys.readouterr().out
    assert (recorded_run / "curvature.jsonl").read_bytes() == before


def test_spectrum_measures_checkpoints(recorded_run, tmp_path, capsys):
    recorded = {r["epoch"]: r for r in read_records(recorded_run / "curvature.jsonl")}
    (checkpoint,) = (recorded_run / "checkpoints").glob("*.pt")
    how = ["--curvature", "probes=1,lanczos=6,samples=40", "--json"]
    for source, extra in ((recorded_run, ["--checkpoints", "all"]), (checkpoint, [])):
        out = tmp_path / source.name
        assert cli.main(["spectrum", str(source), *extra, *how, "--out", str(out)]) == 0
        shown = capsys.readouterr()
        result = json.loads(shown.out)
        (measured,) = read_records(out / "curvature.jsonl")
        assert measured["epoch"] == 3
        assert np.allclose(measured["nodes"], recorded[3]["nodes"], rtol=1e-4, atol=1e-5)
        assert {row["epoch"] for row in result["rows"]} == {0, 2, 3}
        assert str(out / "density.png") in result["files"]
        assert "products for each measurement; timing one" in shown.err


def test_the_density_is_that_of_the_checkpoint_that_was_named(recorded_run, tmp_path, monkeypatch):
    """Though training recorded later epochs, too; and spectra in another mode stay out."""
    from lpsgd.lab.spectra import figures

    early = tmp_path / "run"
    shutil.copytree(recorded_run, early)
    later = read_records(early / "curvature.jsonl")[-1] | {"epoch": 7}
    with (early / "curvature.jsonl").open("a") as stream:
        stream.write(json.dumps(later) + "\n")
    drawn = []
    plain = figures.density_figure
    monkeypatch.setattr(figures, "density_figure", lambda r: drawn.append(r) or plain(r))
    (checkpoint,) = (early / "checkpoints").glob("*.pt")
    rows = {}
    for mode in ("eval", "batch"):
        how = ["--curvature", f"probes=1,lanczos=4,samples=40,batchnorm={mode}"]
        assert cli.main(["spectrum", str(checkpoint), *how, "--out", str(tmp_path / mode)]) == 0
        assert (drawn[-1]["epoch"], drawn[-1]["lanczos"], drawn[-1]["batchnorm"]) == (3, 4, mode)
        rows[mode] = json.loads((tmp_path / mode / "spectrum.json").read_text())
    assert {row["epoch"] for row in rows["eval"]} == {0, 2, 3, 7}
    assert {row["epoch"] for row in rows["batch"]} == {3}


def test_options_of_a_measurement_ask_for_one(recorded_run, tmp_path):
    """Though there is a record that could be drawn."""
    how = ["--curvature", "probes=1,lanczos=4,samples=40", "--out", str(tmp_path)]
    assert cli.main(["spectrum", str(recorded_run), *how]) == 0
    assert [r["lanczos"] for r in read_records(tmp_path / "curvature.jsonl")] == [4]


def test_a_damaged_record_is_named(recorded_run, tmp_path, capsys):
    damaged = tmp_path / "run"
    shutil.copytree(recorded_run, damaged)
    record = read_records(recorded_run / "curvature.jsonl")[0]
    del record["nodes"]
    for line, message in ((record, "epoch 0 has no nodes"), (5, "line 4: expected a record")):
        text = (recorded_run / "curvature.jsonl").read_text() + json.dumps(line) + "\n"
        (damaged / "curvature.jsonl").write_text(text)
        assert cli.main(["spectrum", str(damaged)]) == 2
        assert message in capsys.readouterr().err


def test_a_run_without_a_record_is_measured(tmp_path, capsys):
    train(small_recipe(), tmp_path / "run")
    command = ["spectrum", str(tmp_path / "run"), "--curvature", "probes=1,lanczos=4,samples=16"]
    assert cli.main([*command, "--checkpoints", "none"]) == 2
    assert "no curvature.jsonl to draw" in capsys.readouterr().err
    assert cli.main(command) == 0
    assert (tmp_path / "run" / "spectrum" / "density.svg").is_file()
    assert not (tmp_path / "run" / "spectrum" / "evolution.svg").exists()


def test_text_models_are_measured_with_all_positions_of_a_sample(tmp_path):
    """Targets of a text are flat: cutting the samples has to cut their positions too."""
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    recipe = small_recipe(
        dataset="text",
        data={"path": str(tmp_path / "book.txt"), "context": 8},
        model="gpt",
        epochs=1,
        train_size=None,
        test_size=None,
    )
    options = RunOptions(curvature="probes=1,lanczos=2,samples=5")
    train(recipe, tmp_path / "run", options=options)
    assert [r["samples"] for r in read_records(tmp_path / "run" / "curvature.jsonl")] == [5, 5]


def test_options():
    assert parse_options("") == CurvatureOptions(5, 2, 64, 2048, "eval", False)
    assert parse_options("every=1,batchnorm=batch") == CurvatureOptions(every=1, batchnorm="batch")
    for text, message in (
        ("evry=5", "unknown key 'evry' \\(did you mean 'every'"),
        ("every", "write key=value"),
        ("probes=0", "probes=0: Input should be greater than or equal to 1"),
        ("lanczos=many", "lanczos=many: Input should be a valid integer"),
        ("batchnorm=train", "batchnorm=train: Input should be 'eval' or 'batch'"),
    ):
        with pytest.raises(UserError, match=message):
            parse_options(text)


def test_wrong_input_ends_with_code_2(tmp_path, capsys):
    assert cli.main(["spectrum", str(tmp_path)]) == 2
    assert "neither a run's folder" in capsys.readouterr().err
    assert cli.main(["train", "--curvature", "evry=5", "--out", str(tmp_path / "x")]) == 2
    assert not (tmp_path / "x").exists()


def test_a_damaged_checkpoint_is_recognised(recorded_run, tmp_path, capsys):
    import shutil

    shutil.copytree(recorded_run, tmp_path / "run")
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("*.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    assert cli.main(["spectrum", str(checkpoint)]) == 1
    assert "is damaged" in capsys.readouterr().err
