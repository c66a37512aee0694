"""The numbers in the hand-written sentences of README and pages are those of the committed data.

What stands between `<!-- name: python scripts/... -->` and its end is written by scripts and tested
elsewhere. Here each test computes some numbers from the committed files and writes the phrases
that a page should have with them. Numbers that are not in such a file have no test: those of
speed, of how long something took, and of `examples/quickstart.py`.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import itertools
import json
import math
import re
import statistics
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from lpsgd import LPSGDM, CosineP
from lpsgd.lab import models, sweep
from lpsgd.lab.data import load
from lpsgd.peers import PowerStep

ROOT = Path(__file__).parents[1]
MADE_BY_SCRIPTS = re.compile(r"<!-- (\S+): python scripts/.*?<!-- end of \1 -->", re.DOTALL)
NAMES = "zero one two three four five six seven eight nine ten"
WORDS = dict(enumerate(NAMES.split()))
PARTS = {4: "a quarter", 8: "an eighth", 10: "a tenth"}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

OURS = "LPMuon (cautious, rows)"  # as the screening calls it
PAPERS = "LPSGDM (the paper's)"
SCREENING = "docs/results/screening/runs.csv"


def says(page: str, *phrases: str) -> None:
    """The hand-written part of a page has each phrase once, and not within a longer number."""
    text = MADE_BY_SCRIPTS.sub(" ", (ROOT / page).read_text(encoding="utf-8"))
    text = " ".join(text.split())
    for phrase in phrases:
        found = re.findall(rf"(?<![\w.]){re.escape(phrase)}(?!\w|[.,]\d)", text)
        assert len(found) == 1, f"{page} should say once, but says {len(found)} times: {phrase}"


# --- numbers as the pages write them ------------------------------------------------------------


def word(value: float) -> str:
    """A number, rounded, in letters."""
    return WORDS[round(value)]


def short(value: float) -> str:
    """One digit and an exponent: 0.03 is 3e-2."""
    return f"{value:.0e}".replace("e-0", "e-")


def power_of_ten(value: float) -> str:
    """0.0001 is 10⁻⁴, five times as much is 5·10⁻⁴."""
    digit, exponent = short(value).split("e")
    return ("" if digit == "1" else f"{digit}·") + "10" + exponent.translate(RAISED)


def millions(parameters: float) -> str:
    """A number of parameters."""
    return f"{parameters / 1e6:.2f} M"


# --- the committed data -------------------------------------------------------------------------


@cache
def rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with (ROOT / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def plan(name: str) -> dict[str, Any]:
    """What benchmarks/ asks for; a task may be like an earlier one."""
    asked = tomllib.loads((ROOT / f"benchmarks/{name}.toml").read_text(encoding="utf-8"))
    tasks: dict[str, Any] = {}
    for task, own in asked["tasks"].items():
        tasks[task] = {**tasks.get(own.pop("like", ""), {}), **own}
    return {**asked, "tasks": tasks}


def screened(task: str, rule: str) -> list[float]:
    """The test scores of a rule of the screening, by seed; the higher, the better."""
    wanted = [task, rule, "test"]
    own = [r for r in rows(SCREENING) if [r["task"], r["candidate"], r["split"]] == wanted]
    own.sort(key=lambda row: int(row["seed"]))
    return [-float(row["nll"]) if task == "gpt" else float(row["top1"]) for row in own]


def lead(task: str, rule: str, other: str = "AdamW") -> float:
    """By how much a rule of the screening is better than another."""
    return statistics.fmean(screened(task, rule)) - statistics.fmean(screened(task, other))


def rules_of(task: str) -> list[str]:
    """The rules that have fresh seeds in the screening."""
    found = (r["candidate"] for r in rows(SCREENING) if (r["task"], r["split"]) == (task, "test"))
    return list(dict.fromkeys(found))


def on_matrices(task: str) -> list[str]:
    """The rules on singular values, and those in the eigenbasis."""
    parts = ("Muon", "SOAP", "eigenbasis")
    return [rule for rule in rules_of(task) if any(part in rule for part in parts)]


def screening_trials() -> dict[tuple[str, str], dict[float, float | None]]:
    """(task, rule) -> learning rate -> validation score, None if it diverged."""
    found: dict[tuple[str, str], dict[float, float | None]] = defaultdict(dict)
    for row in rows(SCREENING):
        if row["split"] == "val":
            score = row["nll" if row["task"] == "gpt" else "top1"]
            found[row["task"], row["candidate"]][float(row["lr"])] = float(score) if score else None
    return found


def screening_rate(task: str, rule: str) -> float:
    """The learning rate with the best validation score."""
    trials = {lr: s for lr, s in screening_trials()[task, rule].items() if s is not None}
    return (min if task == "gpt" else max)(trials, key=lambda lr: trials[lr])


def certain(name: str) -> dict[tuple[str, str], float]:
    """(task, rule) -> gain over Muon, where Holm's correction leaves it certain."""
    found = rows(f"docs/results/screening/{name}.csv")
    kept = [row for row in found if float(row["p_holm"] or 1) < 0.05]
    return {(row["task"], row["rule"]): float(row["gain"]) for row in kept}


def standing(task: str, competitor: str, column: str) -> float:
    """A number of the study."""
    found = rows("docs/results/study/summary.csv")
    (row,) = (r for r in found if (r["task"], r["competitor"]) == (task, competitor))
    return float(row[column])


def study_rates(competitor: str) -> list[float]:
    """The best learning rates of the study on images."""
    tasks = [task for task in plan("study")["tasks"] if task != "gpt"]
    return [standing(task, competitor, "lr") for task in tasks]


def study_scores(task: str, competitor: str) -> list[float]:
    """The accuracy at the end, by seed."""
    wanted = [task, competitor]
    own = [r for r in rows("docs/results/study/epochs.csv") if [r["task"], r["label"]] == wanted]
    last = {int(r["seed"]): float(r["test_top1"]) for r in own}  # the last epoch comes last
    return [last[seed] for seed in sorted(last)]


def network(task: Mapping[str, Any]) -> Any:
    """The network of a task on CIFAR-10 or on text."""
    size, classes = task["data"].get("size"), 10
    shape: tuple[int, ...] = (3, size, size)
    if task["model"] == "gpt":
        shape, classes = (task["data"]["context"],), task["data"]["vocabulary"]
    return models.create(task["model"], input_shape=shape, classes=classes, width=task["width"])


def convolutions(task: Mapping[str, Any]) -> int:
    """How many convolutions with batch norm its network has, before one linear layer."""
    layers = Counter(type(layer).__name__ for layer in network(task))
    assert (layers["BatchNorm2d"], layers["Linear"]) == (layers["Conv2d"], 1)
    return layers["Conv2d"]


def parameters(task: str) -> int:
    """Of the network that the study trained."""
    found = (r["parameters"] for r in rows("docs/results/study/epochs.csv") if r["task"] == task)
    (number,) = {int(text) for text in found}
    return number


def defaults(optimizer: str, *, text: bool) -> list[float]:
    """The learning rates that `scripts/find_defaults.py` found."""
    entries = json.loads((ROOT / "src/lpsgd/lab/defaults.json").read_text())["entries"]
    chosen = [e for e in entries if (e["optimizer"], e["dataset"] == "text") == (optimizer, text)]
    return [entry["settings"]["lr"] for entry in chosen]


def papers_rows(optimizer: str) -> list[dict[str, str]]:
    """The settings of an optimizer in the paper's tables."""
    found = rows("src/lpsgd/lab/paper/hyperparameters.csv")
    return [row for row in found if row["optimizer"] == optimizer]


def scales() -> Any:
    """The sizes at which the paper's experiments are run."""
    return tomllib.loads((ROOT / "src/lpsgd/lab/paper/scales.toml").read_text(encoding="utf-8"))


def good_span(trials: Mapping[float, float | None], sign: int, lost: float) -> float:
    """From the lowest to the highest rate around the best one that loses at most ``lost``."""
    rates = sorted(trials)
    merits = [-math.inf if (score := trials[lr]) is None else sign * score for lr in rates]
    best = merits.index(max(merits))
    bad = [i for i, merit in enumerate(merits) if merit < max(merits) - lost]
    low = max((i for i in bad if i < best), default=-1) + 1
    high = min((i for i in bad if i > best), default=len(rates)) - 1
    return rates[high] / rates[low]


# --- docs/rules.md ------------------------------------------------------------------------------

RULES = "docs/rules.md"


def test_rules_the_budget() -> None:
    trials = screening_trials()
    for rates in trials.values():
        steps = [b / a for a, b in itertools.pairwise(sorted(rates))]
        assert steps == pytest.approx([2.0] * (len(rates) - 1))
    fewest, most = (word(edge(len(rates) for rates in trials.values())) for edge in (min, max))
    (fresh,) = {len(screened(task, rule)) for task, rule in trials if rule in rules_of(task)}
    assert len({row["seed"] for row in rows(SCREENING) if row["split"] == "val"}) == 1
    ten = word(len(study_scores("convnet", "LPSGDM-constant")))
    tasks = plan("screening")["tasks"]
    held = {name: task["val_size"] for name, task in tasks.items()}
    tune, text = held.pop("finetune"), held.pop("gpt")
    (images,) = set(held.values())
    says(
        RULES,
        f"Every rule below got {fewest} learning rates on a validation split (up to {most} where",
        f"the best one was then trained on {word(fresh)} fresh seeds",
        f"{fewest.capitalize()} learning rates a factor of two apart for each rule, one seed,",
        f"scored on {images:,} held-out images (in fine-tuning {tune:,}, on the text {text} "
        "held-out sequences)",
        f"the next one was tried too, up to {most}. The winner trained on {word(fresh)} fresh",
        f"({word(fresh)} seeds cannot tell them apart; the {ten} of [the study]",
    )


def test_rules_the_tasks() -> None:
    tasks = plan("screening")["tasks"]
    images, text, tune = tasks["convnet"], tasks["gpt"], tasks["finetune"]
    size = images["data"]["size"]
    words, context = text["data"]["vocabulary"], text["data"]["context"]
    small, gpt = (sum(p.numel() for p in network(t).parameters()) for t in (images, text))
    says(
        RULES,
        f"`convnet` ({millions(small)} parameters: {word(convolutions(images))} convolutions",
        f"on {images['train_size']:,} CIFAR-10 images at {size} × {size}, {images['epochs']} "
        f"epochs of batches of {images['batch_size']}",
        f"`gpt` ({millions(gpt)} parameters) on Python's manual in {words:,} sub-words, "
        f"contexts of {context}, {text['epochs']} epochs of batches of {text['batch_size']}",
    )
    half, double = (tasks[f"convnet-{name}"]["epochs"] for name in ("half", "double"))
    assert (half, double) == (images["epochs"] / 2, images["epochs"] * 2)
    few, many = (tasks[f"convnet-batch-{size}"] for size in (32, 512))
    classes = [len(part["data"]["classes"]) for part in (tune["pretrained"], tune)]
    says(
        RULES,
        f"batches of {few['batch_size']} ({few['epochs']} epochs) and of {many['batch_size']} "
        f"({many['epochs']}), half and double the length",
        f"{word(classes[0])} classes learned by AdamW from {tune['pretrained']['train_size']:,} "
        f"images, then the other {word(classes[1])} from {tune['train_size'] // classes[1]} images",
    )


def test_rules_the_decay() -> None:
    candidates = plan("screening")["candidates"]
    decays = {
        name: float(re.findall(r"weight_decay=([0-9.e-]+)", given["spec"])[0])
        for name, given in candidates.items()
    }
    coupled = decays.pop("SGDM (Nesterov)")
    (usual, _), (large, _) = Counter(decays.values()).most_common()
    strong = [name.partition(",")[0] for name, decay in decays.items() if decay == large]
    tasks = plan("screening")["tasks"]
    assert {task["decay"] for task in tasks.values()} == {"matrices"}
    warm_up = {name: task["warmup_epochs"] for name, task in tasks.items()}
    text, few = warm_up.pop("gpt"), warm_up.pop("convnet-batch-32")
    assert set(warm_up.values()) == {1}
    says(
        RULES,
        f"A linear warm-up of an epoch ({text:g} epochs on the text, {few:g} with batches of 32)",
        f"decay on matrices and kernels alone, {usual:g} ({large:g} for {', '.join(strong[:-1])} "
        f"and {strong[-1]}, {power_of_ten(coupled)} coupled for SGDM)",
    )


def test_rules_what_a_good_rate_may_lose() -> None:
    """The spans of the tables follow from the loss that the text allows."""
    points, nats = 1.0, 0.05
    spans = {(r["task"], r["rule"]): r for r in rows("docs/results/screening/summary.csv")}
    trials = screening_trials()
    for (task, rule), row in spans.items():
        sign, lost = (-1, nats) if task == "gpt" else (1, points)
        span = good_span(trials[task, rule], sign, lost)
        assert span == pytest.approx(float(row["good_rates_span"]))
    says(
        RULES,
        f"that lose at most {word(points)} point of validation accuracy",
        f'"better" and "span" are as above, the latter at {nats:g} nats',
    )


def test_rules_photographs() -> None:
    leads = [lead("convnet", rule) for rule in on_matrices("convnet")]
    annealed, rms, per_row, per_tensor = (
        lead("convnet", rule, PAPERS)
        for rule in (
            "LPSGDM, p = 6 throughout",
            "LPSGDM, rms",
            "l_p, running scale of rows",
            "l_p, running scale",
        )
    )
    behind = word(-lead("convnet", PAPERS))
    papers = standing("convnet", "LPSGDM", "better_than_adamw")
    recovered = standing("convnet", "LPSGDM-rms", "better_than_adamw") - papers
    seeds = standing("convnet", "LPSGDM-rms", "n")
    assert per_tensor < 0
    says(
        RULES,
        f"is {word(min(leads))} to {word(max(leads))} points above AdamW",
        f"Annealing p to 2, as the paper does, costs LPSGDM {annealed:.1f} points: it is then "
        f'{behind} points behind AdamW. Of these {behind} `normalize="rms"` recovers {rms:.1f} '
        f"({recovered:.1f} of {-papers:.1f} with the {word(seeds)} seeds of the study) and a "
        f"running scale of rows {per_row:.1f}, a running scale of tensors nothing",
    )
    muons = [rule for rule in rules_of("convnet") if "Muon" in rule]
    assert max(muons, key=lambda rule: lead("convnet", rule)) == "Muon + cautious"
    assert ("convnet", "Muon + rows") not in certain("additions")


def test_rules_a_constant_p_ties_adamw_at_half_of_its_memory() -> None:
    ties = (
        "LPSGDM, p = 6 throughout",
        "LPSGDM, p = 11 throughout",
        "PowerStep",
        "Lion-K, p = 6",
    )
    summary = {(r["task"], r["rule"]): r for r in rows("docs/results/screening/summary.csv")}
    assert all(float(summary["convnet", rule]["p_holm"]) >= 0.05 for rule in ties)
    assert standing("convnet", "LPSGDM-constant", "better_high") < 0
    memory = [
        standing("convnet", label, "state_bytes_a_parameter")
        for label in ("LPSGDM-constant", "AdamW")
    ]
    assert memory[0] / memory[1] == pytest.approx(0.5, abs=0.01)
    power = inspect.signature(PowerStep).parameters["power"].default
    says(
        RULES,
        "a constant large p ties AdamW at half of its memory**: LPSGDM at p = 6 and at p = 11 "
        f"throughout, PowerStep (p = {1 / power + 1:g} with summed momentum), Lion-K at p = 6",
    )


def test_rules_text() -> None:
    leads = [lead("gpt", rule) for rule in on_matrices("gpt")]
    spread = statistics.stdev(screened("gpt", "Muon"))
    gains = {word(lead("gpt", rule, "Muon") / spread) for rule in ("Muon + rows", OURS)}
    assert gains == {"two"}
    constant, annealed = (
        -standing("gpt", label, "better_than_adamw") for label in ("LPSGDM-constant", "LPSGDM")
    )
    sgdm = screened("gpt", "SGDM (Nesterov)")
    says(
        RULES,
        f"all rules on singular values and SOAP are {min(leads):.1f} to {max(leads):.1f} nats",
        "are ahead of plain Muon by about twice its deviation between seeds",
        f"here LPSGDM with p = 11 throughout by {-lead('gpt', 'LPSGDM, p = 11 throughout'):.1f} "
        f"nats and annealed as in the paper by {-lead('gpt', PAPERS):.1f}",
        f"p = 6 throughout by {constant:.2f} and annealed by {annealed:.2f}",
        f"SGDM's learning rate of {screening_rate('gpt', 'SGDM (Nesterov)'):g} was the best",
        f"its fresh seeds range over {max(sgdm) - min(sgdm):.1f} nats",
    )


def test_rules_exponents() -> None:
    best = "Muon, p from inf to 9"
    gain = lead("convnet", best, "Muon")
    p = stats.ttest_rel(screened("convnet", best), screened("convnet", "Muon")).pvalue
    tasks = list(plan("screening")["tasks"])
    costs = {task: -lead(task, "Muon, p from inf to 2", "Muon") for task in tasks}
    text = costs.pop("gpt")
    says(
        RULES,
        f"(p from ∞ to 9, {gain:+.2f} points on the conv net, p = {p:.3f} before the correction "
        "and not certain after it)",
        f"costs {min(costs.values()):.1f} to {max(costs.values()):.1f} points and {text:.2f} nats",
        "**No other exponent is certainly better than p = ∞ anywhere**, and p = 5 and annealing "
        "from ∞ to 2 are worse on every task, certainly so on some",
    )
    found = certain("exponents")
    assert max(found.values()) < 0
    assert {rule for _, rule in found} == {"Muon, p = 5", "Muon, p from inf to 2"}
    assert min(costs.values()) > 0
    assert max(lead(task, "Muon, p = 5", "Muon") for task in tasks) < 0


def test_rules_mask_and_rows() -> None:
    found = certain("additions")
    assert set(found) == {
        ("gpt", OURS),
        ("convnet", "Muon + cautious"),
        ("gpt", "Muon + rows"),
    }
    assert min(found.values()) > 0
    small, many = (lead(task, OURS, "Muon") for task in ("convnet", "convnet-batch-512"))
    says(
        RULES,
        "Both together certainly gain on the text; on the conv net "
        f"({small:+.2f}) and with batches of 512 ({many:+.2f}) the gain is not certain",
        "Alone, the mask certainly helps on the conv net, and the rows on the text",
    )


def test_rules_leaders() -> None:
    leaders = ("Muon", OURS, "Muon, p = 5", "Muon, p from inf to 2")
    tasks = [task for task in plan("screening")["tasks"] if task.startswith("convnet")]
    leads = {rule: {task: lead(task, rule) for task in tasks} for rule in leaders}
    for own in leads.values():
        assert max(own, key=lambda task: own[task]) == "convnet-batch-512"
        assert min(own, key=lambda task: own[task]) == "convnet-double"
    every = [value for own in leads.values() for value in own.values()]
    says(
        RULES,
        f"is {word(min(every))} to {word(max(every))} points at every batch size and length: "
        "largest with batches of 512, smallest in the longest runs",
        f"Muon is {lead('finetune', 'Muon'):.1f} and LPMuon {lead('finetune', OURS):.1f} points "
        "ahead of AdamW, neither certain",
    )
    summary = rows("docs/results/screening/summary.csv")
    tuned = [float(r["p_holm"]) for r in summary if r["task"] == "finetune" and r["p_holm"]]
    assert min(tuned) >= 0.05


def test_rules_what_was_cut() -> None:
    candidates = set(plan("screening")["candidates"])
    tried = {rule for task, rule in screening_trials() if task == "gpt"}
    unfinished = tried - set(rules_of("gpt"))
    assert unfinished == {
        *("PowerStep", "Cautious AdamW", "l_p Adam in the eigenbasis", "Muon, p from inf to 9")
    }
    seconds: Counter[str] = Counter()
    for row in rows("docs/results/study/epochs.csv"):  # the same two tasks; as many runs of each
        seconds[row["task"]] += float(row["seconds"] or 0)
    says(
        RULES,
        f"On the text {word(len(unfinished))} candidates of the photographs' list",
        f"have trials and no fresh seeds, and {word(len(candidates - tried))} have neither: a run "
        f"takes about {word(seconds['gpt'] / seconds['convnet'])} times as long",
    )


# --- docs/choosing.md, and the advice on README and front page ----------------------------------

CHOOSING = "docs/choosing.md"


def lpsgdm_on_images() -> dict[str, list[float]]:
    """The best learning rates of LPSGDM, by search."""
    retuned = rows("src/lpsgd/lab/paper/retuned.csv")
    return {
        "study": study_rates("LPSGDM"),
        "screening": [screening_rate("convnet", PAPERS)],
        "retuned": [float(row["lr"]) for row in retuned if row["optimizer"] == "LPSGDM"],
        "defaults": defaults("lpsgdm", text=False),
    }


def lpsgdm_on_text() -> list[float]:
    """The best learning rates of the study, the screening and the defaults."""
    others = screening_rate("gpt", PAPERS), *defaults("lpsgdm", text=True)
    return [standing("gpt", "LPSGDM", "lr"), *others]


def between(rates: list[float]) -> str:
    """The lowest and the highest rate, or the only one."""
    return " to ".join(f"{rate:g}" for rate in sorted({min(rates), max(rates)}))


def first_rate() -> str:
    """What to start with: the most frequent of the defaults on images."""
    return short(statistics.mode(defaults("lpsgdm", text=False)))


def next_rates() -> str:
    """What to try next: the ends of all searches on images, and the lowest on text."""
    every = list(itertools.chain(*lpsgdm_on_images().values()))
    return (
        f"then try {short(min(every))} and {short(max(every))}; for a language model "
        f"{short(min(lpsgdm_on_text()))} too"
    )


def lpmuon_advice() -> str:
    """The call with the median of the best rates on images."""
    decay = plan("study")["competitors"]["LPMuon"]["weight_decay"]
    rate = short(statistics.median(study_rates("LPMuon")))
    return f"LPMuon(param_groups(model, weight_decay={decay:g}, muon=True), lr={rate})"


def test_choosing_lpmuon() -> None:
    study, screening = standing("gpt", "LPMuon", "lr"), screening_rate("gpt", OURS)
    assert study == screening
    (smaller,) = defaults("lpmuon", text=True)
    says(
        CHOOSING,
        f"**`{lpmuon_advice()}`, for a language model with `lr={short(study)}`**",
        f"(its best rates on text were {study:g} in study and screening, and {smaller:g} for a",
    )


def test_choosing_what_soap_costs() -> None:
    tasks, labels = plan("study")["tasks"], plan("study")["competitors"]

    def ratio(task: str, column: str) -> float:
        return standing(task, "SOAP", column) / standing(task, "LPMuon", column)

    memory = {task: ratio(task, "state_bytes_a_parameter") for task in tasks}
    assert {int(memory[task]) for task in tasks if task != "gpt"} == {2}
    best = Counter(
        max(labels, key=lambda label: standing(task, label, "better_than_adamw")) for task in tasks
    )
    assert best["SOAP"] > best["LPMuon"]
    says(
        CHOOSING,
        "SOAP has the best mean on more tasks than LPMuon; it keeps more than twice as much state",
        f"no 3 × 3 kernels, {word(memory['gpt'])} times as much, with steps that take "
        f"{ratio('gpt', 'milliseconds_a_step'):.1f} times as long",
    )


def test_choosing_the_rates_of_lpsgdm() -> None:
    found = lpsgdm_on_images()
    every = list(itertools.chain(*found.values()))
    study, screening, default = lpsgdm_on_text()
    says(
        CHOOSING,
        f"On images our searches ended between {min(every):g} and {max(every):g} "
        f"(`make study`: {between(found['study'])}; the screening: {between(found['screening'])}; "
        f"`python scripts/retune_paper.py`: {between(found['retuned'])}; "
        f"`python scripts/find_defaults.py`: {between(found['defaults'])}), on text at {study:g} "
        f"(the study), {screening:g} (the screening) and {default:g} (the defaults)",
    )


@pytest.mark.parametrize(
    ("page", "start"),
    [
        (CHOOSING, "Start at `lr={}`"),
        ("README.md", "Start at `lr={}`"),
        ("docs/index.md", "start at {}"),
    ],
)
def test_the_rates_to_start_with(page: str, start: str) -> None:
    says(page, f"{start.format(first_rate())}, {next_rates()}")


def test_choosing_the_default() -> None:
    usual = statistics.mode(float(row["lr"]) for row in papers_rows("LPSGDM"))
    assert inspect.signature(LPSGDM).parameters["lr"].default == usual
    assert min(itertools.chain(*lpsgdm_on_images().values())) > usual
    epochs = scales()["paper"]["stand_ins"]["cifar10"]["epochs"]
    says(
        CHOOSING,
        f"The constructor's default of {short(usual)} is the paper's most frequent value, for runs "
        f"of {epochs} epochs; in our short runs on images it was too small in every search",
    )


def test_choosing_the_table_of_first_settings() -> None:
    constant = plan("study")["competitors"]["LPSGDM-constant"]
    rms = study_rates("LPSGDM-rms")
    three = ("LPSGDM", "LPSGDM-constant", "LPSGDM-rms")
    leads = {label: standing("gpt", label, "better_than_adamw") for label in three}
    assert min(leads, key=lambda label: leads[label]) == "LPSGDM-rms"
    papers = [float(row["lr"]) for row in papers_rows("LPSGDM")]
    says(
        CHOOSING,
        f"`lr={first_rate()}`, `p=CosineP({plan('study')['competitors']['LPSGDM']['p']:g}, ...)`",
        f"`lr={first_rate()}`, `p={constant['p']}`, `weight_decay={constant['weight_decay']:g}`",
        f"`lr={short(statistics.median(rms))}`, then {short(min(rms))} and {short(max(rms))}; not "
        f"for text, where it was [the worst of the {word(len(three))}]",
        r"at p = 6 a coordinate with \|m\| = 1e-3 moves by "
        f"{1e-3 ** (1 / (constant['p'] - 1)):.2f} lr",
        f"its own rates, {between(papers)}, most often {statistics.mode(papers):g}",
    )


def test_choosing_p_max() -> None:
    values = Counter(int(row["p_max"]) for row in papers_rows("LPSGDM"))
    (usual, often), *others = values.most_common()
    rest = " and ".join(str(p) for p, _ in sorted(others))

    def alpha(p: int) -> str:
        return str(Fraction(1, p - 1))

    says(
        CHOOSING,
        f"| {usual} | by default | the paper's value in {word(often)} of its "
        f"{word(values.total())} rows ({rest} in the others)",
        f"| 3 to 4 | the loss is noisy at the start, the batch is small | α = {alpha(3)} to "
        f"{alpha(4)} amplifies",
        f"closer to sign descent: at p = 9, α = {alpha(9)}",
        f"Between 5 and 8 α only changes from {alpha(5)} to {alpha(8)}",
    )


# --- docs/study.md ------------------------------------------------------------------------------

STUDY = "docs/study.md"


def test_study_the_table_of_tasks() -> None:
    tasks = plan("study")["tasks"]
    images, text, digits, resnet = (tasks[t] for t in ("convnet", "gpt", "digits", "resnet18"))
    free = {"short": "epochs", "batch-64": "batch_size", "batch-512": "batch_size"}
    for name, field in free.items():
        assert {**tasks[f"convnet-{name}"], field: images[field]} == images
    batches = [tasks[f"convnet-batch-{size}"]["batch_size"] for size in (64, 512)]
    size, small = images["data"]["size"], resnet["data"]["size"]
    says(
        STUDY,
        f"| convnet | {convolutions(images)} convolutions, {millions(parameters('convnet'))} | "
        f"{images['train_size']:,} CIFAR-10 images at {size} × {size} | {images['epochs']}, "
        f"{images['batch_size']} |",
        f"| convnet-short | the same | the same | {tasks['convnet-short']['epochs']}, "
        f"{images['batch_size']} |",
        f"| convnet-batch-64, -512 | the same | the same | {images['epochs']}, {batches[0]} and "
        f"{batches[1]} |",
        f"| gpt | {millions(parameters('gpt'))} | Python's manual in "
        f"{text['data']['vocabulary']:,} sub-words | {text['epochs']}, {text['batch_size']} × "
        f"{text['data']['context']} |",
        f"| digits | ResNet-18, width {digits['width']} | {load('digits').train.size:,} digits of "
        f"scikit-learn | {digits['epochs']}, {digits['batch_size']} |",
        f"| resnet18 | ResNet-18, width {resnet['width']} | {resnet['train_size']:,} CIFAR-10 "
        f"images at {small} × {small} | {resnet['epochs']}, {resnet['batch_size']} |",
        f"it goes back to {resnet['train_size']:,} images in batches of {resnet['batch_size']} "
        f"with {resnet['val_size']:,} held out, but shrunk to {small} × {small} and for "
        f"{resnet['epochs']} epochs",
        f"the second duration of the small network is {tasks['convnet-short']['epochs']} epochs",
        f"the size of the small network was corrected ({millions(parameters('convnet'))}",
    )


def test_study_the_competitors() -> None:
    given = plan("study")["competitors"]
    sgdm, papers, constant = given["SGDM"], given["LPSGDM"], given["LPSGDM-constant"]
    assert sgdm["nesterov"]
    assert constant["p_schedule"] == "constant"
    end = CosineP(papers["p"], total_steps=10)(10)
    says(
        STUDY,
        f"SGDM (Nesterov, {sgdm['momentum']:g})",
        f"LPSGDM as printed in the paper (p from {papers['p']:g} to {end:g})",
        f"LPSGDM with p = {constant['p']:g} throughout. Nothing but the learning rate is searched",
    )


def test_study_the_budget() -> None:
    asked = plan("study")
    searched: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows("docs/results/study/trials.csv"):
        searched[row["task"], row["label"]].append(float(row["lr"]))
    (trials,) = {len(rates) for rates in searched.values()}
    for rates in searched.values():
        steps = [b / a for a, b in itertools.pairwise(sorted(rates))]
        assert steps == pytest.approx([2.0] * (trials - 1))
    for label in asked["competitors"]:
        of_images = {min(searched[t, label]) for t in asked["tasks"] if t != "gpt"}
        assert of_images == {4 * min(searched["gpt", label])}
    seeds = sorted({int(row["seed"]) for row in rows("docs/results/study/epochs.csv")})
    assert seeds == asked["seeds"]
    before = sorted({int(r["seed"]) for r in rows(SCREENING) if r["split"] == "test"})
    says(
        STUDY,
        f"{word(trials).capitalize()} learning rates for each competitor, a factor of two apart, "
        "one seed, scored on a validation split",
        f"of the {word(trials)}; on text all are a quarter of those on images",
        f"The winner trains on {word(len(seeds))} fresh seeds ({seeds[0]} to {seeds[-1]}; the "
        f"search used {inspect.signature(sweep).parameters['train_seed'].default})",
        f"the fresh seeds are {seeds[0]} to {seeds[-1]} instead of 0 to 9, because the screening "
        f"had used {before[0]} to {before[-1]} on",
    )


def test_study_its_ranges_hold_what_the_screening_found() -> None:
    names = {"SGDM": "SGDM (Nesterov)", "LPMuon": OURS, "LPSGDM": PAPERS}
    names |= {"LPSGDM-rms": "LPSGDM, rms", "LPSGDM-constant": "LPSGDM, p = 6 throughout"}
    places = []
    for task in ("convnet", "gpt"):
        for label in plan("study")["competitors"]:
            if (rule := names.get(label, label)) in rules_of(task):
                found = rows("docs/results/study/trials.csv")
                rates = sorted(
                    float(r["lr"]) for r in found if (r["task"], r["label"]) == (task, label)
                )
                places.append(1 + rates.index(pytest.approx(screening_rate(task, rule))))
    ordinals = {3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}
    first, last = ordinals[min(places)], ordinals[max(places)]
    says(STUDY, f"what the screening found best, between the {first} and the {last} of the seven")


def test_study_the_tests() -> None:
    found = rows("docs/results/study/hypotheses.csv")
    corrected = Counter(row["hypothesis"] for row in found if not row["margin"])
    (margin,) = {float(row["margin"]) for row in found if row["margin"]}
    equal = [row for row in found if row["margin"]]
    assert all(row["hypothesis"] == "2" for row in equal)
    for row in equal:
        ours, others = (study_scores(row["task"], row[side]) for side in ("first", "second"))
        gains = [one - other for one, other in zip(ours, others, strict=True)]
        low, _ = stats.t.interval(0.90, len(gains) - 1, statistics.fmean(gains), stats.sem(gains))
        assert float(row["low_90"]) == pytest.approx(low, rel=1e-4)
    one, two, three = (corrected[str(number)] for number in (1, 2, 3))
    says(
        STUDY,
        f"over all {corrected.total()} tests that have one ({one} of the first hypothesis, {two} "
        f"of the second, {three} of the third;",
        f"LPMuon beats tuned SGDM, AdamW and Lion on each task ({one} tests)",
        f"beats plain Muon on the GPT ({two} test), and is not worse by more than {margin:g} "
        "points on images (the lower end of the 90 % interval of the difference is above "
        f"-{margin:g}; {len(equal)} tests)",
        f"does not beat AdamW on any task ({three} tests;",
    )


def test_study_what_a_good_rate_may_lose() -> None:
    points, share = 1.0, 0.01
    trials: dict[tuple[str, str], dict[float, float | None]] = defaultdict(dict)
    for row in rows("docs/results/study/trials.csv"):
        score = row["val_nll" if row["task"] == "gpt" else "val_top1"]
        trials[row["task"], row["label"]][float(row["lr"])] = float(score) if score else None
    for (task, label), own in trials.items():
        sign, lost = 1, points
        if task == "gpt":
            sign, lost = -1, share * min(score for score in own.values() if score is not None)
        span = good_span(own, sign, lost)
        assert span == pytest.approx(standing(task, label, "good_rates_span"))
    says(STUDY, f"at the cost of a point (or {share:.0%} of the NLL)".replace("%", " %"))


def test_study_the_largest_network() -> None:
    assert round(max(parameters(task) for task in plan("study")["tasks"]) / 1e6) == 1
    says(STUDY, "Networks of a million parameters")


# --- docs/results.md ----------------------------------------------------------------------------

RESULTS = "docs/results.md"


def test_results_the_scale() -> None:
    papers, ours = scales()["paper"]["stand_ins"], scales()["cpu"]["stand_ins"]
    widths = scales()["cpu"]["widths"]
    parts = {name: Fraction(width, models.PUBLISHED_WIDTH) for name, width in widths.items()}
    fractions = {Fraction(1, n): said for n, said in PARTS.items()}
    usual = fractions[parts["VGG-11"]]
    assert parts["VGG-11"] == parts["ResNet-18"]
    ten, hundred = ours["cifar10"], ours["cifar100"]
    images = fractions[Fraction(ten["train"], papers["cifar10"]["train"])]
    (batch,) = {int(row["batch_size"]) for row in rows("src/lpsgd/lab/paper/hyperparameters.csv")}
    steps = [data["epochs"] * (data["train"] // batch) for data in (ten, hundred)]
    assert steps[1] == pytest.approx(steps[0], rel=0.05)
    lion = min(float(row["lr"]) for row in papers_rows("Lion"))
    says(
        RESULTS,
        f"with {usual} of the width (ResNet-50 {fractions[parts['ResNet-50']]}), {images} of "
        f"CIFAR's training images and {ten['epochs']} epochs instead of "
        f"{papers['cifar10']['epochs']} (on CIFAR-100 {hundred['epochs']}, which is about as many",
        f"the order of optimizers after {papers['cifar10']['epochs']} epochs",
        f"were tuned for runs of {papers['cifar10']['epochs']} epochs; in {steps[0]} steps they "
        f"starve optimizers with small ones (Lion's {power_of_ten(lion)} most of all)",
        f"only the test file was available: {hundred['train']:,} of its images train, the other "
        f"{hundred['test']:,} test",
    )
    assert lion == min(float(r["lr"]) for r in rows("src/lpsgd/lab/paper/hyperparameters.csv"))


def test_results_the_seeds_behind_a_first_place() -> None:
    counts = {
        seeds
        for name in ("table1", "table1-retuned", "table2")
        for seeds in Counter(
            (row["network"], row["label"]) for row in rows(f"docs/results/paper/{name}/runs.csv")
        ).values()
    }
    (seeds,) = counts
    says(RESULTS, f"First places are those of means over {word(seeds)} seeds")


def test_results_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    held_out = importlib.import_module("retune_paper").HELD_OUT
    papers = {
        (row["dataset"], row["model"], row["optimizer"]): float(row["lr"])
        for row in rows("src/lpsgd/lab/paper/hyperparameters.csv")
    }
    tried: dict[tuple[str, str, str], list[Fraction]] = defaultdict(list)
    for row in rows("docs/results/paper/retuned/trials.csv"):
        place = row["dataset"], row["model"], row["optimizer"]
        tried[place].append(Fraction(float(row["lr"]) / papers[place]).limit_denominator(3))
    (factors,) = {tuple(sorted(own)) for own in tried.values()}
    *others, last = (str(factor) for factor in factors)
    says(
        RESULTS,
        f"got {word(len(factors))} learning rates, its own in the paper times "
        f"{', '.join(others)} and {last}; the best accuracy on {held_out:,} held-out images won",
    )


def test_results_the_rates_of_fig2() -> None:
    chosen = {row["name"]: row["default"] for row in rows("src/lpsgd/lab/paper/choices.csv")}
    for row in rows("docs/results/paper/fig2/runs.csv"):
        rate = chosen[f"fig2-{row['label'].lower()}-lr"]
        assert row["settings"].startswith(f"lr={rate},")
    says(
        RESULTS,
        f"Here SGD has the learning rate {chosen['fig2-sgd-lr']} and LPSGD "
        f"{chosen['fig2-lpsgd-lr']}",
    )


# --- README.md and docs/index.md ----------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_call_of_lpmuon(page: str) -> None:
    says(page, f"`{lpmuon_advice()}`")


@pytest.mark.parametrize("page", [CHOOSING, "README.md", "docs/index.md"])
def test_how_many_optimizers_the_first_figure_shows(page: str) -> None:
    says(page, f"Test scores of {word(len(plan('study')['competitors']))} optimizers on two tasks")


def test_readme_and_front_page_the_range_of_p() -> None:
    usual = statistics.mode(int(row["p_max"]) for row in papers_rows("LPSGDM"))
    end = CosineP(usual, total_steps=10)(10)
    says("README.md", f"with p annealed from about {usual} to {end:g} while training")
    says("docs/index.md", f"anneals p from about {usual} to {end:g} while training")


def test_readme_the_papers_schedule() -> None:
    data = scales()["paper"]["stand_ins"]["cifar10"]
    (batch,) = {int(row["batch_size"]) for row in papers_rows("LPSGDM")}
    steps = -(-data["train"] // batch)  # the last batch is smaller
    usual = statistics.mode(int(row["p_max"]) for row in papers_rows("LPSGDM"))
    says(
        "README.md",
        f"`CosineP({usual}, total_epochs={data['epochs']}, steps_per_epoch={steps})` is the "
        "paper's schedule",
    )


def test_readme_no_other_p_was_certainly_better() -> None:
    assert max(certain("exponents").values()) < 0
    says("README.md", "on its singular values no p was certainly better than ∞")


def test_front_page_the_memory() -> None:
    """A buffer has four bytes for each parameter."""
    ours, adamw = (
        standing("convnet", label, "state_bytes_a_parameter") / 4 for label in ("LPSGDM", "AdamW")
    )
    says(
        "docs/index.md",
        f"{word(ours)} buffer for each parameter instead of AdamW's {word(adamw)}",
    )
