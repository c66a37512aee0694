"""The page of the paper's results is what the committed runs say, and nothing else."""

from __future__ import annotations

import csv
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.lab.made_up_runs import history, write_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("publish_paper")


def test_the_page_is_what_the_runs_say(publish: Any, tmp_path: Path) -> None:
    texts, documents = publish.contents()
    made = publish.pages.fill_file(publish.PAGE, texts, "publish_paper.py")
    assert made == publish.PAGE.read_text(encoding="utf-8")
    assert documents
    for name, document in documents.items():
        for path in publish.write_document(document, tmp_path / name):
            if path.suffix in (".csv", ".md"):
                committed = publish.RESULTS / path.relative_to(tmp_path)
                assert committed.read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_the_theory_on_the_page_is_what_is_computed(publish: Any, tmp_path: Path) -> None:
    kept = publish.RESULTS / "theory"
    made = publish.write_document(publish.draw(publish.planned("theory")), tmp_path)
    for path in made:
        if path.suffix == ".csv":
            pairs = zip(_cells(path), _cells(kept / path.name), strict=True)
            assert all(a == b or float(a) == pytest.approx(float(b), rel=1e-6) for a, b in pairs)
    assert {path.name for path in made} == {path.name for path in kept.iterdir()}


def _cells(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [cell for row in csv.reader(file) for cell in row]


def test_a_target_is_published_once_none_of_its_runs_is_missing(
    publish: Any, tmp_path: Path
) -> None:
    plan = publish.planned("table1", tmp_path)
    scores = {"sgd": 70.0, "adamw": 60.0, "lion": 50.0, "lpsgdm": 65.0}
    *first, last = plan.tasks
    for task in first:
        rows = history(scores[task.recipe.optimizer], seed=task.recipe.seed, epochs=20)
        if task is first[0]:  # it waits for an hour, which is no time of training
            rows[2]["seconds"] += 3600
        write_run(task.folder, task.label, task.recipe.seed, rows, epochs=20)
    texts, documents = publish.contents(tmp_path)
    assert "table1" not in documents
    assert texts["table1"].startswith("Not run to its end yet: 1 of 36 runs are missing.")
    write_run(last.folder, last.label, last.recipe.seed, [], state="diverged", epochs=20)
    texts, documents = publish.contents(tmp_path)
    assert "table1" in documents  # what diverged is not missing
    orders = texts["table1-orders"]
    (order,) = re.findall(r"^\| ResNet-18 \| (.*) \| (.*) \|$", orders, re.MULTILINE)
    # the paper's Table 1 at epoch 200, and the scores above
    assert order[0] == "LPSGDM 94.8, AdamW 94.1, Lion 94.0, SGD w/ Momentum 93.2"
    assert order[1] == "SGD w/ Momentum 70.0, LPSGDM 65.0, AdamW 60.0, Lion 50.0"
    sentence = texts["table1"].partition("\n")[0]
    assert "LPSGDM ends first on 0 of 3 networks (in the paper on 3)" in sentence
    kept = re.search(r"(\d+) of the 18 pairs", sentence)
    assert kept is not None
    assert int(kept[1]) == _pairs_in_the_papers_order(scores)
    assert "; on ResNet-18 −5.00 against SGD w/ Momentum; " in sentence
    # 35 runs of 20 epochs: nine seconds, then two each
    minutes = round(35 * (9 + 19 * 2) / 60)
    assert f"results/cpu` ({minutes} min of training on one core; Python 3.11.7)" in texts["table1"]
    links = re.findall(r"\]\(([^)]+)\)", texts["table1"])
    assert links
    assert all(link.startswith("results/paper/table1/") for link in links)


def _pairs_in_the_papers_order(scores: dict[str, float]) -> int:
    """Counted from the paper's CSV by another way: signs of all ordered differences."""
    with (ROOT / "src/lpsgd/lab/paper/results.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["dataset"] == "cifar10"]
    names = {"SGD w/ Momentum": "sgd", "AdamW": "adamw", "Lion": "lion", "LPSGDM": "lpsgdm"}
    ends = [r for r in rows if r["metric"] == "test_top1" and r["epoch"] == "200"]
    agree = 0
    for one in ends:
        for other in ends:
            if one["model"] == other["model"] and float(one["mean"]) > float(other["mean"]):
                agree += scores[names[one["optimizer"]]] > scores[names[other["optimizer"]]]
    return agree


def made_up(publish: Any, name: str, folder: Path, score: Any, longer: Any = None) -> str:
    """The sentence of an entry whose runs end at ``score(label, seed)``.

    Their updates are ``longer(label)`` times as long as those of others.
    """
    plan = publish.planned(name, folder)
    for group in plan.groups:
        for task in group.tasks:
            final, seed = score(group.label, task.recipe.seed), task.recipe.seed
            rows = history(final, seed=seed, epochs=20)
            for row in rows:
                row["update_rms"] *= longer(group.label) if longer else 1.0
            write_run(task.folder, task.label, seed, rows, epochs=20)
    sentence: str = publish.SENTENCES[name](publish.load_runs(plan.groups))
    return sentence


@pytest.mark.parametrize("name", ["fig1", "fig1-lpsgdm"])
def test_fig1_says_how_the_drawn_spectra_moved(publish: Any, name: str) -> None:
    """Against the CSV of nodes and weights that a reader has."""
    spectra: dict[float, list[tuple[float, float]]] = {}
    with (publish.RESULTS / name / "fig1-spectra.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            pair = float(row["eigenvalue"]), float(row["weight"])
            spectra.setdefault(float(row["epoch"]), []).append(pair)
    said = publish.contents()[0][name].partition("\n")[0]
    sizes, shares = [], []
    for epoch in (min(spectra), max(spectra)):
        low, high = min(spectra[epoch])[0], max(spectra[epoch])[0]
        sizes.append(f"{-100 * low / high:.2g} %")
        shares.append(f"{100 * sum(w for value, w in spectra[epoch] if value < -high / 100):.2g} %")
    assert f"which is negative, goes from {' to '.join(sizes)} of the largest, and" in said
    assert f"below −1 % of the largest from {' to '.join(shares)}." in said
    lowest, epoch = min((max(pairs)[0], epoch) for epoch, pairs in spectra.items())
    assert f"over {lowest:.3g}, its lowest, at epoch {epoch:g}, to" in said
    still_negative = min(spectra[max(spectra)])[0] < 0
    assert ("disappear, which does not hold here" in said) == still_negative


def test_fig2_says_the_difference_and_the_papers(publish: Any, tmp_path: Path) -> None:
    scores = {"SGD": 50.0, "LPSGD": 53.0}
    said = made_up(publish, "fig2", tmp_path, lambda label, seed: scores[label] + seed)
    assert "+3.00 on ResNet-18 and CIFAR-10 (the paper says +0.65)" in said
    assert "+3.00 on ResNet-50 and CIFAR-100 (the paper says +4.92)" in said


def test_fig4_names_the_best_and_what_is_certainly_worse(publish: Any, tmp_path: Path) -> None:
    # seeds 0, 1, 2: p_max = 4 leads 6 by 0.1, 0, 0.2 (t = 1.7), 2 by 5.1, 4.9, 5 and the rest by 10
    noise = {4: (0, 0, 0), 6: (-0.1, 0, -0.2), 2: (-5.1, -4.9, -5)}

    def score(label: str, seed: int) -> float:
        p = int(label.rpartition(" ")[2])
        return 60 + seed + noise.get(p, (-10, -10.1, -9.9))[seed]

    said = made_up(publish, "fig4", tmp_path, score, lambda label: int(label[8:]) ** 2)
    assert said.startswith("Accuracy is not monotone in p_max (2: 56.0, 4: 61.0, 6: 60.9,")
    assert "p_max = 4 ends best" in said
    assert ": p_max = 2, p_max = 9, p_max = 16. All have" in said
    assert said.endswith("that with p_max = 2, 1 at 2, 4 at 4, 9 at 6, 20.2 at 9, 64 at 16.")
    falling = made_up(
        publish, "fig4", tmp_path / "b", lambda label, seed: 60.5 - int(label[8:]) + seed
    )
    assert falling.startswith("Accuracy falls with every increase of p_max (2: 59.5, 4: 57.5,")


def test_decay_says_by_how_much_the_step_shrinks(publish: Any, tmp_path: Path) -> None:
    scores = {"paper": 50.0, "rms": 52.0}
    said = made_up(publish, "decay", tmp_path, lambda label, seed: scores.get(label, 49.0) + seed)
    rows = history(50.0, seed=0, epochs=20)
    first, last = (row["update_rms"] / row["lr"] for row in (rows[0], rows[-2]))  # then lr is 0
    assert f"paper by {first / last:.3g} until epoch 19 (51.0 %)" in said
    assert "rms +2.00" in said
    assert "dual −1.00" in said


def test_the_short_table_has_a_line_for_each_whole_entry(publish: Any, tmp_path: Path) -> None:
    def score(label: str, seed: int) -> float:
        return {"LPSGDM": 70.0, "LPSGD": 53.0, "paper": 55.0}.get(label, 50.0) + seed

    names = ("table1", "table2", "fig2", "fig4", "decay")
    for name in names:
        rises = (lambda label, seed: int(label[8:]) + seed) if name == "fig4" else score
        made_up(publish, name, tmp_path / name, rises)
    groups = {n: publish.load_runs(publish.planned(n, tmp_path / n).groups) for n in names}
    said = publish.paper_short.short(groups).splitlines()[2:]
    assert [re.findall(r"^\| \[([^]]+)\]", line)[0] for line in said] == [
        *("Table 1", "Table 2", "Fig. 2", "Fig. 4", "The hidden decay"),
    ]
    assert said[0].endswith("first on 3 of 3 networks | LPSGDM ends first on 3 of 3 networks |")
    assert "+0.65 on ResNet-18 and CIFAR-10; +4.92 on ResNet-50 and CIFAR-100 |" in said[2]
    assert said[2].endswith("| +3.00; +3.00 |")
    assert said[3].endswith("| accuracy rises with every increase of p_max |")
    rows = history(55.0, seed=0, epochs=20)
    first, last = (row["update_rms"] / row["lr"] for row in (rows[0], rows[-2]))  # then lr is 0
    assert f"shortens the step, by a factor of {first / last:.3g} up to epoch 19;" in said[4]
    assert said[4].endswith("accuracy with p kept at p_max minus the paper's: −5.00 points |")


def test_the_links_of_the_short_table_lead_to_headings(publish: Any) -> None:
    page = publish.PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in titles}
    links = re.findall(
        r"\]\(#([^)]+)\)", " ".join(t for t, _ in publish.paper_short.SHORT.values())
    )
    assert links
    assert set(links) <= anchors


def test_retuned_rates_won_their_search(publish: Any) -> None:
    retune = importlib.import_module("retune_paper")
    with retune.TRIALS.open(newline="") as file:
        trials = list(csv.DictReader(file))
    rates = importlib.import_module("lpsgd.lab.paper.tables.published").retuned_rates()
    page = publish.PAGE.read_text(encoding="utf-8")
    said = page.partition("<!-- retuned-search:")[2].partition("<!-- end of")[0]
    assert {(r.model, r.optimizer) for r in rates} == {(t["model"], t["optimizer"]) for t in trials}
    for rate in rates:
        own = [t for t in trials if (t["model"], t["optimizer"]) == (rate.model, rate.optimizer)]
        assert len(own) == len(retune.FACTORS)
        best = max(own, key=lambda t: float(t["val_top1"] or -1))
        assert float(best["lr"]) == rate.lr
        lower, higher = ([t for t in own if s * float(t["lr"]) > s * rate.lr] for s in (-1, 1))
        told = f"{rate.optimizer} on {rate.model} ({rate.lr:g})" in said
        assert told == (not lower or not higher)


@pytest.mark.parametrize("name", ["table1", "table1-retuned", "table2"])
def test_the_shape_of_the_curves_is_that_of_the_committed_table(publish: Any, name: str) -> None:
    """Against the CSV that a reader has, and the paper's."""
    table, _, retuned = name.partition("-")
    path = publish.RESULTS / name / f"{table}.csv"
    page = publish.PAGE.read_text(encoding="utf-8")
    block = page.partition(f"<!-- {table}-shapes:")[2].partition("<!-- end of")[0]
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in block.splitlines()]
    here = [r for r in _rows(path) if r["metric"] == "test_top1"]
    networks = ", ".join(dict.fromkeys(r["model"] for r in here))
    place = {"table1": "cifar10", "table2": "cifar100"}[table], "test_top1"
    paper = [
        r
        for r in _rows(publish.ROOT / "src/lpsgd/lab/paper/results.csv")
        if (r["dataset"], r["metric"]) == place and r["model"] in networks.split(", ")
    ]
    how = "retuned learning rates" if retuned else "the paper's settings"
    for name, rows in {"the paper": paper, f"here, {how}": here}.items():
        found = [cells for cells in lines if cells[0] == f"{networks}: {name}"]
        assert found
        assert all(cells[1:] == found[0][1:] for cells in found)
        _expect_shape(found[0][1:], rows)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _expect_shape(cells: list[str], rows: list[dict[str, str]]) -> None:
    """First places by sorting each column of the table, gains as sums over the networks."""
    epochs = sorted({int(r["epoch"]) for r in rows})
    networks = {r["model"] for r in rows}
    first = []
    for epoch in epochs:
        at = [(float(r["mean"]), r) for r in rows if int(r["epoch"]) == epoch]
        best = [max((m, r["optimizer"]) for m, r in at if r["model"] == n)[1] for n in networks]
        first.append(str(best.count("LPSGDM")))
    gains: dict[str, float] = {}
    for r in rows:
        sign = {epochs[-1]: 1, epochs[-2]: -1}.get(int(r["epoch"]), 0)
        gain = sign * float(r["mean"]) / len(networks)
        gains[r["optimizer"]] = gains.get(r["optimizer"], 0) + gain
    assert cells[0] == ", ".join(first)
    said = [float(cell.strip("*").replace("−", "-")) for cell in cells[1:]]
    assert said == pytest.approx(list(gains.values()), abs=0.051)


def test_gains_are_in_bold_where_they_certainly_differ(publish: Any, tmp_path: Path) -> None:
    """Seeds 0, 1, 2: LPSGDM gains 10, 10, 10 in the second half."""
    gains = {"lpsgdm": (10, 10, 10), "sgd": (15, 16, 17), "adamw": (9, 10, 12), "lion": (7, 8, 9)}
    plan = publish.planned("table1", tmp_path)
    for task in plan.tasks:
        seed, optimizer = task.recipe.seed, task.recipe.optimizer
        rows = history(60.0, seed=seed, epochs=20)
        rows[9]["test_top1"] = 60.0 - gains[optimizer][seed]
        lost = (task.recipe.model, optimizer) == ("vgg11", "lion")
        state = "diverged" if lost else "complete"
        write_run(task.folder, task.label, seed, rows, epochs=20, state=state)
    said = publish.contents(tmp_path)[0]["table1-shapes"].splitlines()
    assert [line.count("**") for line in said] == [0, 0, 0, 2]
    cells = said[3].strip("| ").split(" | ")
    # sgd leads by 5, 6, 7 (t = 10); adamw by -1, 0, 2; of Lion no mean over all networks is left
    assert cells[2:] == ["**+16.0**", "+10.3", "diverged", "+10.0"]


def test_where_a_search_misled_is_what_the_committed_tables_say(publish: Any) -> None:
    page = publish.PAGE.read_text(encoding="utf-8")
    said = page.partition("<!-- retuned-search:")[2].partition("<!-- end of")[0]
    told = dict(re.findall(r"([^:;]+ on \S+) (−[\d.]+)", said.rpartition("by seed:")[2]))
    ends: list[dict[str, float]] = []
    for name in ("table1", "table1-retuned"):
        found = [r for r in _rows(publish.RESULTS / name / "table1.csv") if r["epoch"] == "20"]
        means = [r for r in found if r["metric"] == "test_top1"]
        ends.append({f"{r['optimizer']} on {r['model']}": float(r["mean"]) for r in means})
    paper, searched = ends
    worse = {place: searched[place] - paper[place] for place in searched}
    worse = {place: by for place, by in worse.items() if by < 0}
    assert {place.strip(): float(by.replace("−", "-")) for place, by in told.items()} == {
        place: pytest.approx(by, abs=0.006) for place, by in worse.items()
    }
