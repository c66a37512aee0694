"""How each of the paper's claims is checked against the paper's own tables, by the claim's id."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from lpsgd.lab.paper import grid
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.paper.tables.published import OPTIMIZERS, OURS

AGREES, DIFFERS, PARTLY = "agrees", "does not follow", "follows in part"
UNKNOWN = "not checkable from the tables"
BASELINES = tuple(name for name in OPTIMIZERS if name != OURS)
_EVERY = tuple(tables.DATASETS)
_ALL_EPOCHS, _LAST_EPOCH = slice(None), slice(-1, None)


@dataclass(frozen=True)
class Finding:
    """What the tables give for a claim."""

    verdict: str
    found: str


_unknown = partial(Finding, UNKNOWN)


def accuracy(dataset: str, model: str, optimizer: str, epoch: int) -> float:
    """A test accuracy of Tables 1 to 3 in percent."""
    return tables.result(dataset, model, optimizer, "test_top1", epoch).mean


def _gain(dataset: str, model: str, baseline: str, epoch: int) -> float:
    return accuracy(dataset, model, OURS, epoch) - accuracy(dataset, model, baseline, epoch)


def margin(dataset: str, model: str, epoch: int) -> tuple[float, str]:
    """LPSGDM's accuracy minus that of the best other optimizer, and who that is."""
    best = max(BASELINES, key=lambda name: accuracy(dataset, model, name, epoch))
    return round(_gain(dataset, model, best, epoch), 2), best


def _networks() -> list[tuple[str, str]]:
    return [(dataset, model) for dataset in _EVERY for model in tables.models(dataset)]


def final(dataset: str) -> int:
    """The last epoch that a table reports."""
    return tables.checkpoints(dataset)[-1]


# --- kinds of checks ---------------------------------------------------------------------------


def _verdict(agrees: bool) -> str:
    return AGREES if agrees else DIFFERS


def _final_margin(dataset: str, model: str, stated: float) -> Finding:
    gained, best = margin(dataset, model, final(dataset))
    found = f"{gained:.2f} over {best} at epoch {final(dataset)}"
    if gained == stated:
        return Finding(AGREES, found)
    return Finding(DIFFERS, f"{found}; {_elsewhere(dataset, stated)}")


def _elsewhere(dataset: str, stated: float) -> str:
    """Where in a data set's table a margin of that size does stand."""
    places = [
        f"{model} over {baseline} at epoch {epoch}"
        for model, baseline, epoch in product(
            tables.models(dataset), BASELINES, tables.checkpoints(dataset)
        )
        if round(_gain(dataset, model, baseline, epoch), 2) == stated
    ]
    if not places:
        return f"no margin of {tables.DATASETS[dataset]}'s table is {stated:.2f}"
    return f"{stated:.2f} is the margin of {'; '.join(places)}"


def _over(dataset: str, model: str, baseline: str, epoch: int, stated: float) -> Finding:
    ours, theirs = (accuracy(dataset, model, name, epoch) for name in (OURS, baseline))
    gained = ours - theirs
    found = f"{ours:.2f} - {theirs:.2f} = {gained:.2f}"
    return Finding(_verdict(round(gained, 2) == stated), found)


def _values(dataset: str, stated: dict[tuple[str, int], float]) -> Finding:
    """Whether LPSGDM's accuracies are the stated ones and the best of their row."""
    agrees = all(
        accuracy(dataset, model, OURS, epoch) == value and margin(dataset, model, epoch)[0] > 0
        for (model, epoch), value in stated.items()
    )
    parts = [
        f"{model} at {epoch}: {accuracy(dataset, model, OURS, epoch):.2f}, "
        f"{margin(dataset, model, epoch)[0]:+.2f} over {margin(dataset, model, epoch)[1]}"
        for model, epoch in stated
    ]
    return Finding(_verdict(agrees), "; ".join(parts))


def _best_share(datasets: Sequence[str], epochs: slice) -> tuple[int, int, list[str]]:
    """At how many places LPSGDM's accuracy is the best, of how many, and where it is not."""
    places = [
        (dataset, model, epoch)
        for dataset in datasets
        for model in tables.models(dataset)
        for epoch in tables.checkpoints(dataset)[epochs]
    ]
    lost = [
        f"{tables.DATASETS[d]} {m} at {e} ({margin(d, m, e)[1]}, {-margin(d, m, e)[0]:.2f} more)"
        for d, m, e in places
        if margin(d, m, e)[0] <= 0
    ]
    return len(places) - len(lost), len(places), lost


def _best(*datasets: str, epochs: slice = _ALL_EPOCHS, lost_verdict: str = PARTLY) -> Finding:
    won, places, lost = _best_share(datasets, epochs)
    found = f"best at {won} of {places} places"
    if lost:
        return Finding(lost_verdict, f"{found}; not at {'; '.join(lost)}")
    return Finding(AGREES, found)


# --- checks of single claims -------------------------------------------------------------------


def _better_generalization() -> Finding:
    won, places, _ = _best_share(_EVERY, _LAST_EPOCH)
    found = f"LPSGDM is best at {won} of {places} final places; LPSGD has no row"
    return Finding(PARTLY, found)


def _p_max_varies() -> Finding:
    used: dict[str, dict[str, float | None]] = {}
    for row in tables.setting_rows():
        if row.optimizer == OURS:
            used.setdefault(row.model, {})[tables.DATASETS[row.dataset]] = row.p_max
    found = "; ".join(
        f"{model}: " + ", ".join(f"{p:g} on {dataset}" for dataset, p in chosen.items())
        for model, chosen in used.items()
    )
    alike = [
        name
        for key, name in tables.DATASETS.items()
        if len(tables.models(key)) > 1 and len({chosen[name] for chosen in used.values()}) == 1
    ]
    if alike:
        found += f"; the same for every model on {', '.join(alike)}"
    return Finding(PARTLY if alike else AGREES, found)


def _beats_sgdm() -> Finding:
    sgdm = BASELINES[0]
    networks = _networks()
    lost = [
        f"{tables.DATASETS[d]} {m} at {e}"
        for d, m in networks
        for e in tables.checkpoints(d)
        if _gain(d, m, sgdm, e) <= 0
    ]
    won = sum(_gain(d, m, sgdm, final(d)) > 0 for d, m in networks)
    found = (
        f"LPSGDM ends above {sgdm} in {won} of {len(networks)}; "
        f"at checkpoints it is below at {', '.join(lost) or 'none'}; SGD and LPSGD have no row"
    )
    return Finding(AGREES if not lost else PARTLY, found)


def _figure_2() -> Finding:
    rows = (
        ("ResNet-18/CIFAR-10", 92.40, 93.05, accuracy("cifar10", "ResNet-18", BASELINES[0], 200)),
        ("ResNet-50/CIFAR-100", 68.97, 73.89, accuracy("cifar100", "ResNet-50", BASELINES[0], 200)),
    )
    parts = [
        f"{name}: a gain of {after - before:.2f}; the tables' SGD w/ Momentum has {momentum:.2f}"
        for name, before, after, momentum in rows
    ]
    return Finding(
        UNKNOWN,
        f"{'; '.join(parts)}. SGD and LPSGD without momentum have no row: `lpsgd reproduce fig2`",
    )


def _resnet50_cifar100() -> Finding:
    (middle, who), (end, then) = (margin("cifar100", "ResNet-50", e) for e in (100, 200))
    value = accuracy("cifar100", "ResNet-50", OURS, 100)
    found = f"{value:.2f} at 100, {middle:+.2f} over {who}; {end:+.2f} over {then} at 200"
    return Finding(_verdict(value == 71.45 and 0 < middle < end), found)


def _later_is_more_evident() -> Finding:
    shares = []
    for name, place in (("50", 0), ("100", 1), ("200", 2)):
        won, places, _ = _best_share(("cifar100",), slice(place, place + 1))
        shares.append(f"{won} of {places} at epoch {name}")
    middle, places, lost = _best_share(("cifar100",), slice(1, 2))
    verdict = AGREES if middle == places else PARTLY
    found = f"LPSGDM is best in {', '.join(shares)}"
    return Finding(verdict, f"{found}; not at {'; '.join(lost)}" if lost else found)


def _lion_early() -> Finding:
    best = [
        model
        for model in tables.models("cifar100")
        if max(OPTIMIZERS, key=lambda name: accuracy("cifar100", model, name, 50)) == "Lion"
    ]
    return Finding(
        _verdict(bool(best)),
        f"Lion is not only competitive but best at epoch 50 on {', '.join(best)}",
    )


def _adamw_first() -> Finding:
    values = {name: accuracy("imagenet1k", "ResNet-50", name, 20) for name in OPTIMIZERS}
    found = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
    return Finding(_verdict(max(values, key=lambda name: values[name]) == "AdamW"), found)


def _clear_margins() -> Finding:
    """Over every baseline that is named; clear: above two joint deviations."""
    parts, clear = [], True
    for epoch, name in product((40, 60), BASELINES):
        ours, theirs = (
            tables.result("imagenet1k", "ResNet-50", optimizer, "test_top1", epoch)
            for optimizer in (OURS, name)
        )
        gained, spread = ours.mean - theirs.mean, math.hypot(ours.std, theirs.std)
        parts.append(f"{gained:.2f} over {name} at {epoch}, {gained / spread:.1f} joint deviations")
        if gained <= 2 * spread:
            clear = False
            parts[-1] += f" (that of {name} is {theirs.std:.2f})"
    return Finding(AGREES if clear else PARTLY, "; ".join(parts))


def _smallest_nll() -> Finding:
    networks = _networks()

    def smallest(dataset: str, model: str, epoch: int) -> bool:
        nll = {o: tables.result(dataset, model, o, "train_nll", epoch).mean for o in OPTIMIZERS}
        return nll[OURS] == min(nll.values())

    at_end = [smallest(d, m, final(d)) for d, m in networks]
    anywhere = [smallest(d, m, e) for d, m in networks for e in tables.checkpoints(d)]
    return Finding(
        _verdict(not all(anywhere)),
        f"LPSGDM's training NLL is the smallest at {sum(anywhere)} of {len(anywhere)} places, and "
        f"at {sum(at_end)} of the {len(at_end)} final ones",
    )


def _odd_nll() -> Finding:
    place = ("cifar100", "ResNet-18")
    nll = tables.result(*place, OURS, "train_nll", 200)
    others = [tables.result(*place, name, "train_nll", 200).mean for name in BASELINES]
    top1 = accuracy(*place, OURS, 200)
    won, places, _ = _best_share(_EVERY, _LAST_EPOCH)
    return Finding(
        _verdict(won == places),
        f"on CIFAR-100 ResNet-18 LPSGDM has NLL {nll.mean:.3f} ± {nll.std:.4f} beside the best "
        f"accuracy {top1:.2f} %; the others have {min(others):.4f} to {max(others):.4f}. How "
        "training NLL was measured is not said (`--choose train-nll=whole`)",
    )


def _budget(optimizer: str) -> Finding:
    choices = grid.load_space(keep_zero_lr=True)[optimizer]
    printed = {name: values for name, values in choices.items() if name != "p"}
    trials = grid.trials(printed)
    sizes = " x ".join(f"{len(values)} {k}" for k, values in printed.items() if len(values) > 1)
    found = f"{sizes} = {trials} trials"
    if "p" in choices:
        used = sorted({row.p_max for row in tables.setting_rows() if row.p_max is not None})
        known = ", ".join(f"{p:g}" for p in used)
        found += f", times the number of p_max, which is not given (the tables use {known})"
    if zero := trials * choices["lr"].count(0) // len(choices["lr"]):
        found += f"; {zero} of them with a learning rate of 0"
    return Finding(UNKNOWN if "p" in choices else AGREES, found)


def _lion_beta2() -> Finding:
    rows = [row for row in tables.setting_rows() if row.optimizer == "Lion"]
    used = {beta: sum(row.beta2 == beta for row in rows) for beta in (0.99, 0.999)}
    found = f"Tables 4 to 6 have 0.99 in {used[0.99]} row and 0.999 in {used[0.999]} rows"
    return Finding(_verdict(used[0.999] == 0), found)


CHECKS: dict[str, Callable[[], Finding]] = {
    "better-generalization": _better_generalization,
    "rate": partial(_unknown, "a theorem, not a table: `lpsgd reproduce theory` measures the rate"),
    "superiority": partial(_best, *_EVERY),
    "fig1-extremes": partial(
        _unknown,
        "Fig. 1 (ResNet-18/CIFAR-10: 17.5, -2.5; ResNet-50/ImageNet-1K: 1180, -680) has no table: "
        "`lpsgd reproduce fig1`",
    ),
    "fig1-disappear": partial(_unknown, "Fig. 1 has no table: `lpsgd reproduce fig1`"),
    "overhead": partial(_unknown, "the tables hold no times: `lpsgd bench step` measures them"),
    "enhances": _beats_sgdm,
    "cifar10-vgg11": partial(_final_margin, "cifar10", "VGG-11", 0.68),
    "cifar10-resnet18": partial(_final_margin, "cifar10", "ResNet-18", 0.31),
    "cifar10-resnet50": partial(_final_margin, "cifar10", "ResNet-50", 0.27),
    "cifar100-vgg11": partial(_final_margin, "cifar100", "VGG-11", 1.12),
    "cifar100-resnet18": partial(_final_margin, "cifar100", "ResNet-18", 1.11),
    "cifar100-resnet50": partial(_final_margin, "cifar100", "ResNet-50", 1.87),
    "imagenet-final": partial(_final_margin, "imagenet1k", "ResNet-50", 1.89),
    "fig2": _figure_2,
    "fig3-sign": partial(
        _unknown,
        "a figure, not a table. On the strong quadratic, each with its best learning rate, SignGD "
        "ends far below GD after 100 to 3000 steps: `lpsgd reproduce fig3`",
    ),
    "fig3-stages": partial(
        _unknown,
        "the figure shows GD and SignGD only. On the strong quadratic annealed LPSGD ends lowest "
        "after 1000 steps with p_max 8 or 9; after 100 steps it is hardly better than GD, while "
        "SignGD and a fixed p are much better: `lpsgd reproduce fig3`",
    ),
    "budget-sgd": partial(_budget, "sgd"),
    "budget-lpsgdm": partial(_budget, "lpsgdm"),
    "budget-adamw": partial(_budget, "adamw"),
    "budget-lion": partial(_budget, "lion"),
    "p-max-monotone": partial(_unknown, "Fig. 4 has no table: `lpsgd reproduce fig4`"),
    "p-max-varies": _p_max_varies,
    "lion-beta2": _lion_beta2,
    "cifar10-always": partial(_best, "cifar10", lost_verdict=DIFFERS),
    "cifar10-final": partial(
        _values,
        "cifar10",
        {("VGG-11", 200): 90.73, ("ResNet-18", 200): 94.81, ("ResNet-50", 200): 94.84},
    ),
    "cifar10-early": partial(_best, "cifar10", epochs=slice(0, 2)),
    "cifar100-later": _later_is_more_evident,
    "lion-early": _lion_early,
    "cifar100-final": partial(
        _values,
        "cifar100",
        {("VGG-11", 200): 60.46, ("ResNet-18", 200): 77.98, ("ResNet-50", 200): 76.78},
    ),
    "cifar100-resnet50-middle": _resnet50_cifar100,
    "imagenet-superior": partial(_best, "imagenet1k"),
    "adamw-first": _adamw_first,
    "imagenet-late": partial(
        _values, "imagenet1k", {("ResNet-50", 40): 73.48, ("ResNet-50", 60): 74.04}
    ),
    "clear-margins": _clear_margins,
    "over-adamw-40": partial(_over, "imagenet1k", "ResNet-50", "AdamW", 40, 2.83),
    "over-adamw-60": partial(_over, "imagenet1k", "ResNet-50", "AdamW", 60, 2.25),
    "smallest-nll": _smallest_nll,
    "odd-nll": _odd_nll,
    "overall": partial(_best, *_EVERY),
}
