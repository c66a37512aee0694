"""The analysis of fabricated run folders, down to the words of the verdict."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
import scipy.stats

from lpsgd.lab.analysis.comparison import analyse
from lpsgd.lab.analysis.stats import smallest_detectable
from lpsgd.lab.errors import UserError
from lpsgd.lab.store.run_record import load_comparison
from tests.lab.made_up_runs import history, write_comparison, write_plan, write_run

SGD = [90.0, 91.0, 89.5, 90.4, 90.9]
BETTER = [92.1, 92.8, 91.6, 92.6, 92.8]
SAME = [90.2, 90.7, 89.6, 90.3, 91.1]
WORSE = [85.0, 86.2, 84.4, 85.6, 85.7]


@pytest.fixture
def five_seeds(tmp_path: Path) -> Path:
    finals = {"sgd": SGD, "lpsgdm": BETTER, "adam": SAME, "lion": WORSE}
    return write_comparison(tmp_path / "c", finals, p_max={"lpsgdm": 6.0})


def by_label(analysis):
    return {result.label: result for result in analysis.results}


def test_final_and_best_are_told_apart(five_seeds):
    sgd = by_label(analyse(load_comparison(five_seeds)))["sgd"]
    assert sgd.final["test_top1"].mean == pytest.approx(sum(SGD) / 5)
    assert sgd.best["test_top1"].mean == pytest.approx(sum(SGD) / 5 + 1)
    # the made-up NLL is 3 - 0.03 * accuracy
    assert sgd.final["test_nll"].mean == pytest.approx(3 - 0.03 * sum(SGD) / 5)
    assert sgd.best["test_nll"].mean == pytest.approx(3 - 0.03 * (sum(SGD) / 5 + 1))


def test_tests_are_paired_by_seed_and_corrected(five_seeds):
    results = by_label(analyse(load_comparison(five_seeds)))
    raw = {
        label: scipy.stats.ttest_rel(values, SGD).pvalue
        for label, values in {"lpsgdm": BETTER, "adam": SAME, "lion": WORSE}.items()
    }
    smallest, middle, largest = sorted(raw, key=raw.__getitem__)
    expected = {smallest: 3 * raw[smallest]}
    expected[middle] = max(expected[smallest], 2 * raw[middle])
    expected[largest] = max(expected[middle], raw[largest])
    for label, p in expected.items():
        versus = results[label].versus["test_top1"]
        assert versus.p == pytest.approx(raw[label])
        assert versus.p_holm == pytest.approx(p)
        assert versus.alpha == pytest.approx(0.05 / 3)
        assert versus.smallest_detectable == smallest_detectable(versus.sd, 5, 0.05 / 3)
    assert results["sgd"].versus == {}


def test_verdict_in_words(five_seeds):
    analysis = analyse(load_comparison(five_seeds))
    verdicts = {r.label: r.versus["test_top1"].verdict for r in analysis.results if r.versus}
    assert verdicts == {"lpsgdm": "better", "adam": "inconclusive", "lion": "worse"}
    # for NLL lower is better, so the signs turn and the verdicts stay
    assert by_label(analysis)["lion"].versus["test_nll"].difference > 0
    assert by_label(analysis)["lion"].versus["test_nll"].verdict == "worse"
    assert analysis.verdict == (
        "Better than sgd on test accuracy: lpsgdm.",
        "Worse than sgd on test accuracy: lion.",
        "No difference from sgd shown on test accuracy: adam.",
        "Highest mean test accuracy: lpsgdm (92.38 %).",
    )
    assert analysis.details[0].startswith(
        "lpsgdm is better than sgd on test accuracy by 2.02 points (95 % interval +"
    )
    assert "would have been found with 80 % probability" in analysis.details[1]


def test_another_reference(five_seeds):
    analysis = analyse(load_comparison(five_seeds), reference="lion")
    assert {r.label for r in analysis.results if r.versus} == {"sgd", "lpsgdm", "adam"}
    assert analysis.verdict[0] == "Better than lion on test accuracy: sgd, lpsgdm, adam."
    with pytest.raises(UserError, match=r"'sdg' is not in the comparison.*sgd, lpsgdm"):
        analyse(load_comparison(five_seeds), reference="sdg")


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_below_five_seeds_nothing_is_called_real(tmp_path, seeds):
    finals = {"sgd": SGD[:seeds], "lpsgdm": BETTER[:seeds]}
    analysis = analyse(load_comparison(write_comparison(tmp_path / "c", finals)))
    versus = by_label(analysis)["lpsgdm"].versus["test_top1"]
    assert versus.verdict == "too few seeds"
    assert "too few seeds" in versus.text
    assert analysis.verdict[0].startswith(f"Too few seeds for a verdict: {seeds}; at least 5")
    assert (versus.p is None) == (seeds == 1)
    assert (versus.smallest_detectable is None) == (seeds == 1)
    json.dumps(analysis.to_json(), allow_nan=False)


def test_one_optimizer(tmp_path):
    analysis = analyse(load_comparison(write_comparison(tmp_path / "c", {"sgd": SGD})))
    assert analysis.verdict == ("Only one optimizer (sgd): there is nothing to compare it with.",)
    assert analysis.details == ()


def test_ties_and_differences_without_spread(tmp_path):
    shifted = [value + 0.3 for value in SGD]
    finals = {"sgd": SGD, "twin": list(SGD), "shifted": shifted}
    results = by_label(analyse(load_comparison(write_comparison(tmp_path / "c", finals))))
    assert results["twin"].versus["test_top1"].verdict == "identical"
    assert results["twin"].versus["test_top1"].p_holm == 1
    assert results["shifted"].versus["test_top1"].verdict == "no spread"
    assert "without spread there is no t-test" in results["shifted"].versus["test_top1"].text
    # the test that could not be made is not counted
    assert results["twin"].versus["test_top1"].alpha == 0.05


def test_equal_runs_have_an_interval_of_no_width(tmp_path):
    finals = {"sgd": [90.1] * 5, "lion": WORSE}
    final = by_label(analyse(load_comparison(write_comparison(tmp_path / "c", finals))))["sgd"]
    summary = final.final["test_top1"]
    assert (summary.mean, summary.sd, summary.low, summary.high) == (90.1, 0, 90.1, 90.1)


def test_diverged_unfinished_and_missing_runs_are_shown_and_left_out(five_seeds):
    lion, adam = (five_seeds / "runs" / f"optimizer-{n}" for n in (3, 2))
    shutil.rmtree(lion / "seed-4")
    rows = history(50.0, seed=4)[:2]
    rows[-1]["test_nll"] = math.nan
    reason = "loss is nan at step 17"
    write_run(lion / "seed-4", "lion", 4, rows, state="diverged", reason=reason)
    (adam / "seed-3" / "result.json").unlink()
    shutil.rmtree(adam / "seed-4")

    analysis = analyse(load_comparison(five_seeds))
    results = by_label(analysis)
    assert (results["lion"].complete, results["lion"].diverged) == (4, 1)
    assert results["lion"].final["test_top1"].mean == pytest.approx(sum(WORSE[:4]) / 4)
    assert results["lion"].versus["test_top1"].n == 4
    assert (results["adam"].complete, results["adam"].unfinished) == (3, 2)
    assert "1 of 5 runs of lion diverged; its numbers are from the others only." in analysis.verdict
    assert analysis.notes == (
        "Not finished: adam, seed 3 (epoch 5 of 5).",
        "Not started: adam, seed 4.",
        "Diverged: lion, seed 4 (loss is nan at step 17).",
    )
    assert "Too few seeds for a verdict on adam, lion: 3 to 4; at least 5" in " ".join(
        analysis.verdict
    )
    for seed in range(4):
        result = lion / f"seed-{seed}" / "result.json"
        ended = json.loads(result.read_text())
        result.write_text(json.dumps({**ended, "state": "diverged"}))
    verdict = analyse(load_comparison(five_seeds)).verdict
    assert "All 5 runs of lion diverged: it has no result." in verdict
    states = {(run["label"], run["seed"]): run["state"] for run in analysis.to_json()["runs"]}
    assert states["lion", 4] == "diverged"
    assert states["adam", 4] == "not started"
    assert json.loads(json.dumps(analysis.to_json(), allow_nan=False))["reference"] == "sgd"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("comparison.json", {"seeds": 5}, "seeds=5: Input should be a valid"),
        ("comparison.json", {"optimizers": "sgd"}, "optimizers='sgd': Input should be a valid"),
        ("comparison.json", {"seeds": ["x"]}, "seeds.0='x': Input should be a valid integer"),
        (
            "runs/optimizer-0/seed-0/config.json",
            {"seed": math.inf},
            "seed=inf: Input should be a finite number",
        ),
    ],
)
def test_files_changed_by_hand_are_named(tmp_path, file, change, message):
    root = write_comparison(tmp_path / "c", {"sgd": [90.0]})
    (root / file).write_text(json.dumps({**json.loads((root / file).read_text()), **change}))
    with pytest.raises(UserError, match=f"cannot read .*{file}': .*{message}"):
        load_comparison(root)


def test_an_earlier_epoch_does_not_pass_for_the_last(tmp_path):
    root = write_comparison(tmp_path / "c", {"sgd": [90.0, 91.0], "adam": [92.0, 93.0]})
    metrics = root / "runs/optimizer-1/seed-1/metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    analysis = analyse(load_comparison(root))
    adam = analysis.results[1]
    assert (adam.complete, adam.unfinished, adam.final["test_top1"].mean) == (1, 1, 92.0)
    assert analysis.notes == (
        "Not finished: adam, seed 1 (metrics.jsonl was changed: 2 of 5 epochs are there).",
    )


def test_pairs_are_the_shared_seeds(tmp_path):
    root = tmp_path / "c"
    write_plan(root, ["sgd", "lion"], [0, 1, 2])
    for seed in (0, 1):
        write_run(root / "a" / str(seed), "sgd", seed, history(90.0 + seed, seed=seed))
    for seed in (1, 2):
        write_run(root / "b" / str(seed), "lion", seed, history(95.0 + seed, seed=seed))
    versus = by_label(analyse(load_comparison(root)))["lion"].versus["test_top1"]
    assert (versus.n, versus.difference) == (1, pytest.approx(5.0))


def test_nothing_finished_yet(tmp_path):
    write_plan(tmp_path / "c", ["sgd", "lion"], [0, 1])
    analysis = analyse(load_comparison(tmp_path / "c"))
    assert analysis.verdict == ("No finished seed shared with sgd: lion.",)
    assert by_label(analysis)["sgd"].final["test_top1"].mean is None
    json.dumps(analysis.to_json(), allow_nan=False)


def test_costs(five_seeds):
    sgd = by_label(analyse(load_comparison(five_seeds)))["sgd"]
    # 2 s for 10 steps; the first epoch's 9 s is warm-up
    assert sgd.step_seconds == pytest.approx(0.2)
    assert sgd.optimizer_share == pytest.approx(0.1)
    assert (sgd.state_bytes, sgd.bytes_per_parameter) == (4000, 4.0)


def test_time_per_step_leaves_out_the_first_epoch(tmp_path):
    write_run(tmp_path / "two", "sgd", 0, history(90.0, seed=0, epochs=2), epochs=2)
    assert analyse(load_comparison(tmp_path)).results[0].step_seconds == pytest.approx(0.2)
    write_run(tmp_path / "one", "adam", 0, history(90.0, seed=0, epochs=1), epochs=1)
    adam = by_label(analyse(load_comparison(tmp_path)))["adam"]
    assert adam.step_seconds == pytest.approx(0.9)


def test_folder_without_a_plan(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"x/sgd/{seed}", "sgd", seed, history(90.0, seed=seed))
        write_run(tmp_path / f"deep/er/adam/{seed}", "adam", seed, history(91.0, seed=seed))
    comparison = load_comparison(tmp_path)
    assert (comparison.labels, comparison.reference) == (("adam", "sgd"), "adam")
    assert [(run.label, run.seed) for run in comparison.runs] == [
        ("adam", 0),
        ("adam", 1),
        ("sgd", 0),
        ("sgd", 1),
    ]
    one = load_comparison(tmp_path / "x/sgd/0")
    assert [run.label for run in one.runs] == ["sgd"]


def test_runs_of_one_label_are_told_apart_by_settings_then_by_folder(tmp_path):
    rows = history(90.0, seed=0)
    write_run(tmp_path / "a", "sgd", 0, rows, settings={"lr": 0.1, "momentum": 0.9})
    write_run(tmp_path / "b", "sgd", 0, rows, settings={"lr": 0.3, "momentum": 0.9})
    assert load_comparison(tmp_path).labels == ("sgd:lr=0.1", "sgd:lr=0.3")
    write_run(tmp_path / "c", "sgd", 0, rows, settings={"lr": 0.3, "momentum": 0.9})
    assert load_comparison(tmp_path).labels == ("sgd:lr=0.1", "sgd:lr=0.3 (b)", "sgd:lr=0.3 (c)")


def test_unfair_comparisons_are_said_to_be(tmp_path):
    write_run(tmp_path / "a", "sgd", 0, history(90.0, seed=0))
    write_run(tmp_path / "b", "adam", 0, history(90.0, seed=0), batch_size=64)
    (note,) = load_comparison(tmp_path).notes
    assert note == "The runs differ in batch_size: 128, 64. Compare with care."


def test_runs_outside_the_plan_are_named(five_seeds):
    write_run(five_seeds / "runs/old/seed-0", "rmsprop", 0, history(90.0, seed=0))
    comparison = load_comparison(five_seeds)
    assert "rmsprop" not in comparison.labels
    assert "not part of this comparison: rmsprop seed 0." in comparison.notes[0]


def test_runs_of_a_comparison_further_down_do_not_replace_its_own(tmp_path):
    for folder, final in ((tmp_path, 90.0), (tmp_path / "a", 50.0), (tmp_path / "wide", 60.0)):
        write_plan(folder, ["sgd"], [0])
        write_run(folder / "runs/sgd/seed-0", "sgd", 0, history(final, seed=0))
    assert analyse(load_comparison(tmp_path)).results[0].final["test_top1"].mean == 90.0


def test_a_row_that_is_being_written_is_not_read(tmp_path):
    write_run(tmp_path / "a", "sgd", 0, history(90.0, seed=0), state=None)
    with (tmp_path / "a/metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 6, "test_t')
    assert len(load_comparison(tmp_path).runs[0].history) == 5


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", '{"epoch": 1}\nnonsense\n', r"metrics.jsonl', line 2"),
        ("metrics.jsonl", "3\n", r"line 1: expected a JSON object"),
        ("result.json", "{", r"cannot read .*result.json"),
        ("environment.json", "[]", r"environment.json': expected a JSON object"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text, message):
    write_run(tmp_path / "a", "sgd", 0, history(90.0, seed=0))
    (tmp_path / "a" / name).write_text(text)
    with pytest.raises(UserError, match=message):
        load_comparison(tmp_path)


def test_empty_and_absent_folders(tmp_path):
    with pytest.raises(UserError, match="no run in"):
        load_comparison(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        load_comparison(tmp_path / "absent")


def test_results_are_frozen(five_seeds):
    analysis = analyse(load_comparison(five_seeds))
    with pytest.raises(dataclasses.FrozenInstanceError):
        analysis.reference = "adam"
