"""The study's plan is fair, and its command does what the plan says."""

from __future__ import annotations

import csv
import importlib
import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SMALL = """
trials = 2
seeds = [7, 8]
[competitors]
AdamW = { optimizer = "adamw", lr = 1e-3 }
LPMuon = { optimizer = "lpmuon", lr = 5e-3 }
[tasks.digits]
metric = "top1"
dataset = "digits"
train_size = 64
val_size = 32
test_size = 32
model = "mlp"
width = 8
epochs = 1
batch_size = 32
[tasks.longer]
like = "digits"
lr_scale = 0.5
epochs = 2
"""


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("study")


def test_everyone_gets_as_many_trials_as_the_plan_says(study: Any) -> None:
    plan = study.read_plan()
    assert set(plan["tasks"]) >= {"convnet", "convnet-batch-64", "gpt", "digits", "resnet18"}
    text = (ROOT / "docs/study.md").read_text()
    for task in plan["tasks"].values():
        rates = {label: table["lr"] for label, table in study.space(plan, task).items()}
        assert {len(each) for each in rates.values()} == {plan["trials"]} == {7}
        for each in rates.values():
            assert [b / a for a, b in itertools.pairwise(each)] == [2.0] * 6
    assert plan["seeds"] == list(range(100, 110))
    assert "ten fresh seeds (100 to 109" in text
    screening = importlib.import_module("screening")  # where the hypotheses come from
    assert not {*plan["seeds"]} & {*screening.SEEDS, screening.TUNING_SEED}


PLAN = {
    "trials": 3,
    "seeds": [1, 2, 3],
    "competitors": {name: {"lr": 0.1} for name in ("AdamW", "SGDM", "Lion", "Muon", "LPMuon")}
    | {"LPSGDM": {"lr": 0.1}},
    "tasks": {"images": {"metric": "top1"}, "text": {"metric": "nll"}},
}


@pytest.fixture
def results(study: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("study_results")


def made_up(study: Any, folder: Path, scores: Any, diverged: Any = ()) -> None:
    """Files as the study's command writes them: two epochs, the first five points worse."""
    for task, own in scores.items():
        images = task == "images"
        trials = [
            (task, label, 0.1 * 2**k, "complete", *((s, 1) if images else (1, s)))
            for label in own
            for k, s in enumerate([60.0, 70.0, 69.5] if images else [5.0, 4.0, 4.5])
        ]
        epochs: list[tuple[Any, ...]] = []
        for label, values in own.items():
            for seed, value in zip(PLAN["seeds"], values, strict=True):
                first = value - 5 if images else value + 5
                state = "diverged" if (task, label, seed) in diverged else "complete"
                for epoch, score in enumerate([first, value], 1):
                    both = (score, 1) if images else (1, score)
                    start = (task, label, 0.2, seed, state)
                    epochs.append((*start, epoch, 50 * epoch, *both, 2.0, 0.5, 800, 100))
                if state == "diverged":
                    epochs.append((*start, *[None] * 6, 800, 100))
        study.keep(folder / "trials.csv", study.TRIALS, task, trials)
        study.keep(folder / "epochs.csv", study.EPOCHS, task, epochs)


IMAGES = {
    "AdamW": [60, 61, 62],
    "SGDM": [59, 60, 61.5],
    "Lion": [55, 56, 56.5],
    "Muon": [66, 67, 68.4],
    "LPMuon": [66, 67.1, 68.6],
    "LPSGDM": [50, 51, 52.4],
}
TEXT = {label: [10 - v / 10 for v in values] for label, values in IMAGES.items()}


def test_the_tests_of_the_plan_by_hand(study: Any, results: Any, tmp_path: Path) -> None:
    made_up(study, tmp_path, {"images": IMAGES, "text": TEXT})
    found = results.read_study(tmp_path, PLAN)
    assert found.finished() == ["images", "text"]
    tests = results.hypotheses(found, found.finished())
    assert [test.hypothesis for test in tests] == [1] * 6 + [2] * 2 + [3] * 2
    first = tests[0]  # LPMuon - SGDM: 7, 7.1, 7.1
    assert (first.task, first.second) == ("images", "SGDM")
    mean, sd = 7.0667, 0.057735
    assert first.paired.difference == pytest.approx(mean, abs=1e-4)
    assert first.paired.t == pytest.approx(mean / (sd / 3**0.5), rel=1e-3)
    # on text a lower score is better, and all is ten times smaller
    assert tests[3].task == "text"
    assert tests[3].paired.difference == pytest.approx(mean / 10, abs=1e-4)
    # nine tests have p values: the smallest counts nine times
    corrected = [test for test in tests if test.margin is None]
    smallest = min(corrected, key=lambda test: test.paired.p)
    assert len(corrected) == 9
    assert smallest.p_holm == pytest.approx(9 * smallest.paired.p)
    # LPMuon - Muon on images: 0, 0.1, 0.2; t at 90 % and two degrees of freedom is 2.920
    equal = next(test for test in tests if test.margin is not None)
    assert equal.low_90 == pytest.approx(0.1 - 2.920 * 0.1 / 3**0.5, abs=1e-4)
    assert equal.holds
    assert all(test.holds for test in tests if test.hypothesis == 3)


def test_a_table_of_a_task_by_hand(study: Any, results: Any, tmp_path: Path) -> None:
    made_up(study, tmp_path, {"images": IMAGES, "text": TEXT})
    found = results.read_study(tmp_path, PLAN)
    best, *_, last = results.standings(found, "images")
    assert (best.label, last.label) == ("LPMuon", "LPSGDM")
    assert best.lr == pytest.approx(0.2)
    assert not best.at_edge
    assert best.width == pytest.approx(2)  # of 60, 70, 69.5 the last two
    assert best.at_least  # the last is the highest that was tried
    assert best.milliseconds == pytest.approx(1e3 * 4.0 / 100)
    assert best.share == pytest.approx(0.25)
    assert best.state_bytes == pytest.approx(8)
    # AdamW ends at 60, 61, 62: of LPMuon's first epochs, 61, 62.1 and 63.6, all are there
    assert (best.steps_to, best.seconds_to) == (50, 2.0)
    assert last.steps_to == math.inf
    (adamw,) = (s for s in results.standings(found, "images") if s.label == "AdamW")
    assert (adamw.steps_to, adamw.seconds_to) == (100, 4.0)  # its own end
    text = results.standings(found, "text")
    assert text[0].label == "LPMuon"
    draw = importlib.import_module("draw_study")
    assert draw.edges(found, ["images", "text"]).startswith("No best learning rate")
    rows = (tmp_path / "epochs.csv").read_text()
    (tmp_path / "epochs.csv").write_text(rows.replace("images,Muon,0.2,", "images,Muon,0.4,"))
    moved = results.read_study(tmp_path, PLAN)
    assert draw.edges(moved, ["images", "text"]).endswith(": images: Muon.\n")
    assert text[0].width == pytest.approx(1)  # one per cent of 4.0 is less than 0.5


def test_what_diverged_is_the_worst_and_what_is_missing_leaves_the_task_out(
    study: Any, results: Any, tmp_path: Path
) -> None:
    made_up(study, tmp_path, {"images": IMAGES}, diverged={("images", "Muon", 2)})
    found = results.read_study(tmp_path, PLAN)
    assert found.finished() == ["images"]  # nothing of the text was run
    assert found.final_scores("images")["Muon"] == {1: 66, 2: 50, 3: 68.4}
    (muon,) = (s for s in results.standings(found, "images") if s.label == "Muon")
    assert muon.diverged == 1
    rows = (tmp_path / "epochs.csv").read_text().splitlines(keepends=True)
    (tmp_path / "epochs.csv").write_text("".join(r for r in rows if ",LPSGDM,0.2,3," not in r))
    assert results.read_study(tmp_path, PLAN).finished() == []


def test_the_page_is_what_the_runs_say(results: Any) -> None:
    """Page and CSV files are what the script makes of the runs, byte for byte."""
    draw = importlib.import_module("draw_study")
    found = results.read_study()
    tasks = found.finished()
    tests = draw.hypotheses(found, tasks)
    made = draw.pages.fill_file(draw.PAGE, draw.contents(found, tasks, tests), "draw_study.py")
    assert made == draw.PAGE.read_text(encoding="utf-8")
    if tasks:
        text = (draw.RESULTS / "summary.csv").read_text(encoding="utf-8")
        assert text == draw.standings_csv(found, tasks)
        text = (draw.RESULTS / "hypotheses.csv").read_text(encoding="utf-8")
        assert text == draw.hypotheses_csv(tests)


def test_no_verdict_before_all_tasks_were_run(study: Any, results: Any, tmp_path: Path) -> None:
    draw = importlib.import_module("draw_study")
    made_up(study, tmp_path, {"images": IMAGES})
    some = results.read_study(tmp_path, PLAN)
    assert results.planned_tests(some) == 3 * 2 + 1 + 2
    assert results.planned_tests(results.read_study()) == 29
    text = draw.verdicts(some, results.hypotheses(some, some.finished()))
    assert "text is missing" in text
    assert "holds" not in text
    made_up(study, tmp_path, {"text": TEXT})
    every = results.read_study(tmp_path, PLAN)
    text = draw.verdicts(every, results.hypotheses(every, every.finished()))
    assert "3. LPSGDM as printed does not beat AdamW on any task: **is not refuted** (2 of" in text


def test_the_answer_in_two_sentences(
    study: Any, results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = importlib.import_module("draw_study")
    monkeypatch.setattr(draw, "FIRST", {"images": "photographs", "text": "prose"})
    made_up(study, tmp_path, {"images": IMAGES, "text": TEXT})
    every = results.read_study(tmp_path, PLAN)
    said = draw.answer(every, results.hypotheses(every, every.finished()))
    # LPMuon - AdamW: 6, 6.1, 6.6 and a tenth of it; LPSGDM - AdamW: -10, -10, -9.6
    assert (
        "`LPMuon` ends 6.2 points better than AdamW on photographs and 0.62 nats on prose; "
        "`LPSGDM` as the paper prints it ends 9.9 points worse than AdamW on photographs and "
        "0.99 nats on prose." in said
    )
    assert "3 paired seeds" in said
    assert "trained for 4 to 4 seconds on a core" in said  # two epochs of two seconds
    assert "`LPMuon` is certainly better than AdamW on 2 and worse on 0" in said
    assert "`LPSGDM` better on 0 and worse on 2; the best mean is LPMuon's on 2." in said
    head, _, *rows = draw.choice_table(every).splitlines()
    assert head.count("|") == 8
    # 800 bytes for 100 parameters; two epochs of two seconds and 50 steps for all alike
    assert rows[0] == "| LPMuon | +6.2 | +0.6 | 0.2 | 0.2 | 8.0 | 1.00 |"
    assert "| AdamW |  |  | 0.2 | 0.2 | 8.0 | 1.00 |" in rows
    alike = {**IMAGES, "LPMuon": [61, 61, 61], "LPSGDM": [61, 62, 63.1]}
    made_up(study, tmp_path, {"images": alike})
    every = results.read_study(tmp_path, PLAN)
    said = draw.answer(every, results.hypotheses(every, every.finished()))
    assert "`LPMuon` is certainly better than AdamW on 1 and worse on 0" in said
    assert "ends 1.0 points better than AdamW on photographs and 0.99 nats worse" in said
    assert "better on 1 and worse on 1; the best mean is Muon's on 1 and LPMuon's on 1." in said


def test_readme_and_advice_say_what_the_runs_say(results: Any) -> None:
    draw = importlib.import_module("draw_study")
    found = results.read_study()
    tests = draw.hypotheses(found, found.finished())
    for path in draw.ANSWERS:
        said = draw.advice(found, tests, path)
        page = path.read_text(encoding="utf-8")
        assert draw.pages.fill_file(path, said, "draw_study.py") == page
        assert "results/study/first.svg" in page
    # the same numbers from the committed tables, by another way
    with (draw.RESULTS / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["task"], row["competitor"]): row for row in csv.DictReader(file)}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for label in ("LPMuon", "LPSGDM"):
        for task, digits, unit in (("convnet", 1, "points"), ("gpt", 2, "nats")):
            lead = float(rows[task, label]["better_than_adamw"])
            assert f"{abs(lead):.{digits}f} {unit}" in readme
    advice = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    images, text = (float(rate) for rate in re.findall(r"lr=([0-9.e-]+)", advice)[:2])
    best = {task: float(row["lr"]) for (task, label), row in rows.items() if label == "LPMuon"}
    assert text / 2 <= best.pop("gpt") <= 2 * text
    found = re.search(r"On images our searches ended between ([0-9.]+) and ([0-9.]+)", advice)
    assert found is not None
    retuned = importlib.import_module("lpsgd.lab.paper.tables.published").retuned_rates()
    searched = [rate.lr for rate in retuned if rate.optimizer == "LPSGDM"]
    searched += [
        float(r["lr"]) for (t, label), r in rows.items() if label == "LPSGDM" and t != "gpt"
    ]
    assert [min(searched), max(searched)] == [float(found[1]), float(found[2])]
    assert min(best.values()) <= images <= max(best.values())


def test_the_page_has_a_place_for_every_task(study: Any) -> None:
    page = (ROOT / "docs/study.md").read_text(encoding="utf-8")
    for name in [*study.read_plan()["tasks"], "verdicts", "hypotheses", "edges"]:
        assert f"<!-- {name}: python scripts/draw_study.py -->\n" in page
        assert f"<!-- end of {name} -->" in page


def test_search_then_fresh_seeds(study: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(SMALL)
    asked = ["--plan", "plan.toml", "--out", "runs", "--results", "results", "--jobs", "1"]
    asked = [str(tmp_path / a) if a in ("plan.toml", "runs", "results") else a for a in asked]
    for _ in range(2):  # again: nothing is trained or kept twice
        study.main(asked)
        with (tmp_path / "results/trials.csv").open() as file:
            trials = list(csv.DictReader(file))
        with (tmp_path / "results/epochs.csv").open() as file:
            epochs = list(csv.DictReader(file))
        assert len(trials) == 2 * 2 * 2
        assert len(epochs) == 2 * 2 * (1 + 2)
    assert {row["lr"] for row in trials if row["task"] == "longer"} == {
        *("0.0005", "0.001", "0.0025", "0.005")
    }
    assert {row["seed"] for row in epochs} == {"7", "8"}
    assert all(float(row["test_top1"]) >= 0 for row in epochs)


def test_what_annealing_costs_is_the_difference_of_the_committed_means(results: Any) -> None:
    draw = importlib.import_module("draw_study")
    with (draw.RESULTS / "summary.csv").open(encoding="utf-8", newline="") as file:
        means = {(r["task"], r["competitor"]): float(r["mean"]) for r in csv.DictReader(file)}
    gains = {t: means[t, "LPSGDM-constant"] - means[t, "LPSGDM"] for t, _ in means}
    text = -gains.pop("gpt")  # of a likelihood, less is better
    ahead = sum(gain > 0 for gain in [*gains.values(), text])
    said = (
        f"on {ahead} of {len(gains) + 1} tasks: {min(gains.values()):+.1f} to "
        f"{max(gains.values()):+.1f} points on images and {text:+.2f} nats on text"
    )
    for path in (draw.PAGE, draw.ADVICE):
        assert said in path.read_text(encoding="utf-8")


def test_what_annealing_costs_by_hand(study: Any, results: Any, tmp_path: Path) -> None:
    draw = importlib.import_module("draw_study")
    plan = {**PLAN, "competitors": {**PLAN["competitors"], "LPSGDM-constant": {"lr": 0.1}}}
    # kept - annealed: 2, 3, 4, whose interval is 3 ± 2.48, and -1, 0, 1
    images = {**IMAGES, "LPSGDM": [50, 50, 50], "LPSGDM-constant": [52, 53, 54]}
    text = {**TEXT, "LPSGDM": [5, 5, 5], "LPSGDM-constant": [6, 5, 4]}
    made_up(study, tmp_path, {"images": images, "text": text})
    said = draw.annealing(results.read_study(tmp_path, plan))
    assert "on 1 of 2 tasks: +3.0 points on images and +0.00 nats on text" in said
    assert "is above zero on 1)" in said
