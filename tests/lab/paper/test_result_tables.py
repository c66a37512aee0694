"""Tables 1 to 3 from made-up runs: what stands beside the paper, and what never does."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from lpsgd.lab.analysis.stats import summarise
from lpsgd.lab.paper.choices import read_choices
from lpsgd.lab.paper.protocol import RunGroup, Setup, all_tasks, load_runs, scaled_epoch
from lpsgd.lab.paper.scales import SCALES, Scale
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.paper.tables import results as result_tables
from lpsgd.lab.report.document import to_markdown, write_document
from lpsgd.lab.store.disk.jsonio import write_json
from lpsgd.lab.store.run_files import RunConfig, RunResult, write_result
from tests.lab.made_up_runs import history


def options(scale: Scale, out: Path, *choose: str) -> Setup:
    return Setup(scale, read_choices(choose), out, tuple(tables.MODELS), 3)


def pretend(dataset: str, chosen: Setup, shift: float) -> list[RunGroup]:
    """Write runs whose seeds scatter around the paper's means by its deviations, plus ``shift``."""
    groups = result_tables.plan(dataset, chosen)
    names = {lab: paper for paper, lab in tables.OPTIMIZERS.items()}
    models = {lab: paper for paper, lab in tables.MODELS.items()}
    for task in all_tasks(groups):
        rows = history(90.0, seed=task.recipe.seed, epochs=task.recipe.epochs)
        for epoch in tables.checkpoints(dataset):
            row = rows[scaled_epoch(epoch, dataset, chosen) - 1]
            for metric in ("train_nll", "test_top1"):
                place = (dataset, models[task.recipe.model], names[task.label], metric, epoch)
                published = tables.result(*place)
                off = shift if metric == "test_top1" else 0.0
                row[metric] = published.mean + (task.recipe.seed - 1 + off) * published.std
        task.folder.mkdir(parents=True)
        write_json(task.folder / "config.json", RunConfig.of(task.recipe, task.label).model_dump())
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (task.folder / "metrics.jsonl").write_text(lines)
        write_result(task.folder, RunResult(state="complete", epochs=len(rows)))
    return load_runs(groups)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(("dataset", "name"), [("cifar10", "table1"), ("imagenet1k", "table3")])
def test_at_paper_scale_every_published_number_stands_beside_ours(
    tmp_path: Path, dataset: str, name: str
) -> None:
    chosen = options(SCALES["paper"], tmp_path)
    groups = pretend(dataset, chosen, shift=0.5)
    write_document(result_tables.draw(dataset, name, chosen, load_runs(groups)), tmp_path / name)
    rows = read(tmp_path / name / f"{name}.csv")
    published = [r for r in tables.result_rows() if r.dataset == dataset]
    assert len(rows) == len(published)
    for row, known in zip(rows, published, strict=True):
        assert (row["model"], row["optimizer"], row["metric"], int(row["epoch"])) == (
            known.model,
            known.optimizer,
            known.metric,
            known.epoch,
        )
        assert (float(row["paper"]), float(row["paper's deviation"])) == (known.mean, known.std)
        off = 0.5 * known.std if known.metric == "test_top1" else 0.0
        assert float(row["measured"]) == pytest.approx(known.mean + off)
        assert float(row["deviation"]) == pytest.approx(known.std, abs=1e-9)
        assert float(row["difference"]) == pytest.approx(off, abs=1e-9)
        # half a deviation against a joint one of sqrt(2): inside
        assert row["within the joint uncertainty"] == "True"
        assert row["seeds"] == "3"


def test_a_difference_outside_the_joint_uncertainty_is_told(tmp_path: Path) -> None:
    chosen = options(SCALES["paper"], tmp_path)
    groups = pretend("imagenet1k", chosen, shift=4.0)
    document = result_tables.draw("imagenet1k", "table3", chosen, load_runs(groups))
    text = to_markdown(document)
    # 12 accuracies are 4 deviations off (2 * sqrt(2) are allowed), 12 NLLs are right
    assert "12 of 24 numbers differ by at most 2 joint deviations" in text


def test_the_layout_marks_the_best_of_each_column(tmp_path: Path) -> None:
    chosen = options(SCALES["paper"], tmp_path)
    groups = pretend("imagenet1k", chosen, shift=0.0)
    text = to_markdown(result_tables.draw("imagenet1k", "table3", chosen, load_runs(groups)))
    best = next(line for line in text.splitlines() if line.startswith("| ResNet-50 | AdamW |"))
    cells = [cell.strip() for cell in best.split("|")[3:9]]
    # as the paper prints them in bold: AdamW at NLL 20, 60 and accuracy 20
    assert [cell.startswith("**") for cell in cells] == [True, False, True, True, False, False]
    assert cells[0] == "**1.5629 ± 0.0023**"


def test_scaled_results_never_stand_beside_the_papers(tmp_path: Path) -> None:
    chosen = options(SCALES["cpu"], tmp_path)
    groups = pretend("cifar10", chosen, shift=0.0)
    document = result_tables.draw("cifar10", "table1", chosen, groups)
    files = write_document(document, tmp_path / "table1")
    for path in files:
        if path.suffix in (".csv", ".md"):
            content = path.read_text()
            assert "paper's deviation" not in content
            assert "difference" not in content.replace("differences", "")
    assert "paper" not in read(tmp_path / "table1" / "table1.csv")[0]
    assert {row["epoch"] for row in read(tmp_path / "table1" / "table1.csv")} == {"5", "10", "20"}
    text = to_markdown(document)
    assert "cpu scale on 5000 images of CIFAR-10" in text.splitlines()[0]
    assert "not comparable" in text


def test_training_nll_of_the_whole_set_is_read_where_it_was_chosen(tmp_path: Path) -> None:
    chosen = options(SCALES["cpu"], tmp_path, "train-nll=whole")
    groups = pretend("imagenet1k", chosen, shift=0.0)
    for task in all_tasks(groups):
        path = task.folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [json.dumps({**row, "train_nll_eval": 0.125}) + "\n" for row in rows]
        path.write_text("".join(lines))
    found = list(result_tables.measurements(load_runs(groups), chosen))
    assert {e.measured.mean for e in found if e.metric == "train_nll"} == {0.125}


def test_missing_runs_are_dashes(tmp_path: Path) -> None:
    chosen = options(SCALES["cpu"], tmp_path)
    groups = load_runs(result_tables.plan("imagenet1k", chosen))
    document = result_tables.draw("imagenet1k", "table3", chosen, load_runs(groups))
    assert "| ResNet-50 | Lion | - | - | - | - | - | - |" in to_markdown(document)


def test_ties_within_the_printed_digits_are_all_bold() -> None:
    published = tables.result("cifar10", "VGG-11", "AdamW", "test_top1", 50)
    found = [
        result_tables.Measurement("VGG-11", name, "test_top1", 50, summarise(values), published)
        for name, values in {"a": [90.0, 90.002], "b": [90.0, 90.0], "c": [89.0, 89.0]}.items()
    ]
    table = result_tables._layout("table1", found, [50])
    assert [row[2] for row in table.rows] == [
        "**90.00 ± 0.00**",
        "**90.00 ± 0.00**",
        "89.00 ± 0.00",
    ]
