"""From rows of the tables to runs: the published protocol to the digit, scales, every choice."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lpsgd.lab.errors import UserError
from lpsgd.lab.paper import protocol
from lpsgd.lab.paper.choices import CHOICES, OpenChoice, read_choices
from lpsgd.lab.paper.scales import (
    SCALES,
    Scale,
    get_scale,
    model_names,
)
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.paper.targets import TARGETS
from lpsgd.lab.plan import Task
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.build import spare_vectors
from lpsgd.peers import factory

DOCS = Path(__file__).parents[3] / "docs" / "reproduction.md"


def options(scale: Scale = SCALES["paper"], *choose: str, **changes: Any) -> protocol.Setup:
    made = protocol.Setup(
        scale, read_choices(choose), Path("out"), tuple(tables.MODELS), scale.seeds
    )
    return replace(made, **changes)


def planned(target: str, chosen: protocol.Setup) -> list[Task]:
    return protocol.all_tasks(TARGETS[target].plan(chosen))


def recipe(
    optimizer: str, *choose: str, dataset: str = "cifar10", model: str = "ResNet-18"
) -> Recipe:
    return protocol.recipe(
        tables.setting(dataset, model, optimizer), options(SCALES["paper"], *choose)
    )


@pytest.mark.parametrize("row", tables.setting_rows(), ids=str)
def test_paper_scale_is_the_published_row(row: tables.Setting) -> None:
    made = protocol.recipe(row, options())
    assert made.width is None
    assert (made.train_size, made.val_size, made.test_size) == (None, 0, None)
    assert made.batch_size == row.batch_size == 128
    assert made.epochs == (60 if row.dataset == "imagenet1k" else 200)
    assert made.dataset == {"imagenet1k": "imagefolder"}.get(row.dataset, row.dataset)
    assert made.settings["lr"] == row.lr
    assert made.settings["weight_decay"] == row.weight_decay
    assert made.settings.get("p") == row.p_max
    betas = made.settings.get("betas", [made.settings.get("momentum"), row.beta2])
    assert betas == [row.beta1, row.beta2]
    assert (made.lr_schedule, made.warmup_epochs, made.lr_end) == ("cosine", 5.0, 0.0)


def test_the_tables_have_as_many_runs_as_the_paper() -> None:
    counts = {
        name: len(protocol.all_tasks(target.plan(options()))) for name, target in TARGETS.items()
    }
    assert counts["table1"] == counts["table2"] == 3 * 4 * 3
    assert counts["table3"] == 4 * 3
    assert counts["fig1"] == 2
    assert counts["fig2"] == 2 * 2 * 3
    assert counts["fig4"] == 2 * 5 * 3
    assert counts["decay"] == 5 * 3


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("scale", list(SCALES.values()), ids=lambda s: s.name)
def test_every_run_of_every_target_can_be_built(name: str, scale: Scale) -> None:
    folders = [task.folder for task in planned(name, options(scale))]
    assert len(set(folders)) == len(folders)
    for task in planned(name, options(scale, seeds=1)):
        factory.try_out(task.recipe.optimizer, task.recipe.settings)


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize(
    "choice",
    [c for c in CHOICES if c.kind == "word" and c.name != "settings"],  # of some networks only
    ids=lambda c: c.name,
)
def test_every_run_can_be_built_with_the_other_answers_too(name: str, choice: OpenChoice) -> None:
    for answer in choice.others:
        for task in protocol.all_tasks(
            TARGETS[name].plan(options(SCALES["smoke"], f"{choice.name}={answer}", seeds=1))
        ):
            build(task.recipe)


def test_retuned_settings_change_the_learning_rate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [tables.setting("cifar10", "VGG-11", name) for name in tables.OPTIMIZERS]
    found = [tables.RetunedRate("cpu", r.dataset, r.model, r.optimizer, 7 * r.lr) for r in rows]
    monkeypatch.setattr(tables, "retuned_rates", lambda: tuple(found))
    retuned = options(SCALES["cpu"], "settings=retuned")
    for row in rows:
        paper, other = protocol.recipe(row, options(SCALES["cpu"])), protocol.recipe(row, retuned)
        assert other.settings["lr"] == pytest.approx(7 * row.lr)
        assert other.with_changes(settings=paper.settings) == paper


@pytest.mark.parametrize(("scale", "model"), [("cpu", "ResNet-50"), ("smoke", "VGG-11")])
def test_nobody_searched_that(scale: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = (tables.RetunedRate("cpu", "cifar10", "VGG-11", "AdamW", 0.1),)
    monkeypatch.setattr(tables, "retuned_rates", lambda: known)
    row = tables.setting("cifar10", model, "AdamW")
    message = f"nobody searched cifar10 {model} at {scale} scale; searched: cifar10 VGG-11 at cpu"
    with pytest.raises(UserError, match=message):
        protocol.recipe(row, options(SCALES[scale], "settings=retuned"))


def build(made: Recipe) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = factory.build(
        made.optimizer,
        nn.Linear(2, 2),
        made.settings,
        total_steps=80,
        steps_per_epoch=4,
        total_epochs=20,
    )
    return optimizer


def test_targets_share_the_runs_that_they_have_in_common() -> None:
    table = {task.folder for task in planned("table1", options())}
    figure = planned("fig4", options())
    shared = [task for task in figure if task.folder in table]
    # p_max = 6 on ResNet-18 is LPSGDM's row of Table 1, three seeds of it
    assert [task.label for task in shared] == ["p_max=6"] * 3
    measured = {task.folder for task in planned("fig1", options())}
    assert not measured & table  # nobody measured the curvature of the tables' runs


def test_scaled_runs_keep_optimizers_and_schedules() -> None:
    for scale in (SCALES["cpu"], SCALES["smoke"]):
        for row in tables.setting_rows():
            full = protocol.recipe(row, options(SCALES["paper"]))
            small = protocol.recipe(row, options(scale))
            assert (small.model, small.optimizer) == (full.model, full.optimizer)
            assert small.settings == full.settings
            assert small.lr_schedule == full.lr_schedule
            share = small.warmup_epochs / small.epochs
            assert share == pytest.approx(full.warmup_epochs / full.epochs)
            assert small.width is not None
            assert small.train_size is not None
    at = [
        protocol.scaled_epoch(epoch, "cifar10", options(SCALES["cpu"])) for epoch in (50, 100, 200)
    ]
    assert at == [5, 10, 20]
    at = [
        protocol.scaled_epoch(epoch, "imagenet1k", options(SCALES["cpu"])) for epoch in (20, 40, 60)
    ]
    assert at == [4, 8, 12]


def test_scaled_titles_say_so() -> None:
    assert SCALES["paper"].title("Table 1", ("cifar10",)) == "Table 1"
    assert SCALES["smoke"].title("T", ("cifar10",)) == "T, smoke scale on 96 handwritten digits"
    assert SCALES["cpu"].title("T", ("cifar10",)) == "T, cpu scale on 5000 images of CIFAR-10"
    assert "not comparable" in SCALES["cpu"].note()


# --- choices -----------------------------------------------------------------------------------


def changed(choice: str, optimizer: str = "SGD w/ Momentum", **place: str) -> dict[str, Any]:
    """The recipe fields that a choice changes, with their new values."""
    before, after = recipe(optimizer, **place), recipe(optimizer, choice, **place)
    new, old = after.model_dump(), before.model_dump()
    return {name: new[name] for name in new if new[name] != old[name]}


def test_choices_change_what_they_say() -> None:
    assert changed("warmup=0") == {"warmup_epochs": 0.0}
    assert changed("augment=off") == {"augment": False}
    longer = changed("imagenet-epochs=90", dataset="imagenet1k", model="ResNet-50")
    assert longer == {"epochs": 90}  # and five epochs of warm-up, as before
    assert changed("decayed=matrices") == {"decay": "matrices"}
    assert changed("vgg=plain", model="VGG-11") == {"model": "vgg11_plain"}
    assert changed("vgg=plain") == {}
    assert changed("gpus=8") == {"batch_size": 1024}
    assert changed("lr-end=0.01") == {"lr_end": 0.01}
    assert changed("train-nll=whole") == {"train_eval_every": 50}
    assert changed("nesterov=on")["settings"]["nesterov"] is True
    assert changed("nesterov=on", "AdamW") == {}
    assert changed("lion-beta2=text", "Lion")["settings"]["betas"] == [0.9, 0.99]
    assert changed("sgd-decay=decoupled")["optimizer"] == "sgdw"


@pytest.mark.parametrize("scale", list(SCALES.values()), ids=lambda s: s.name)
@pytest.mark.parametrize("dataset", list(tables.DATASETS))
@pytest.mark.parametrize("total", [60, 90])
def test_the_whole_sets_nll_is_measured_at_every_checkpoint(
    scale: Scale, dataset: str, total: int
) -> None:
    chosen = options(scale, "train-nll=whole", f"imagenet-epochs={total}")
    made = protocol.recipe(tables.setting(dataset, "ResNet-50", "LPSGDM"), chosen)
    for epoch in tables.checkpoints(dataset):
        at = protocol.scaled_epoch(epoch, dataset, chosen)
        assert at % made.train_eval_every == 0 or at == made.epochs


def test_scaled_runs_of_imagenet_follow_its_choices_too() -> None:
    row = tables.setting("imagenet1k", "ResNet-50", "LPSGDM")
    longer = options(SCALES["cpu"], "imagenet-epochs=90")
    assert protocol.recipe(row, longer).epochs == 18  # a fifth, as 12 of 60
    assert protocol.recipe(row, longer).warmup_epochs == pytest.approx(1.0)
    at = [protocol.scaled_epoch(epoch, "imagenet1k", longer) for epoch in (20, 40, 60)]
    assert at == [4, 8, 12]


def one_parameter(made: Recipe, steps: int = 4) -> list[float]:
    """The path of one parameter with gradient sin(t) + theta under a recipe's optimizer."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = factory.build(
        made.optimizer, model, made.settings, total_steps=80, steps_per_epoch=4, total_epochs=20
    )
    path = []
    for t in range(steps):
        model.weight.grad = torch.full((1, 1), 0.1 * t + 0.3) + model.weight.detach()
        optimizer.step()
        path.append(float(model.weight.detach()))
    return path


@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
def test_averaged_momentum_is_the_papers_formula(decay: str) -> None:
    made = recipe("SGD w/ Momentum", f"sgd-decay={decay}", "sgd-momentum=averaged")
    lr, wd = 0.1, 0.001
    theta, m, expected = 1.0, 0.0, []
    for t in range(4):
        g = 0.1 * t + 0.3 + theta
        if decay == "coupled":
            g += wd * theta
        m = 0.9 * m + 0.1 * g
        theta = theta * (1 - lr * wd if decay == "decoupled" else 1) - lr * m
        expected.append(theta)
    assert one_parameter(made) == pytest.approx(expected, rel=1e-5)


def test_p_can_start_its_cosine_after_the_warm_up() -> None:
    made = recipe("LPSGDM", "p-cosine=after-warmup")
    assert made.optimizer.endswith("variants:held")
    assert made.settings["held_epochs"] == 5
    model = nn.Linear(2, 2)
    optimizer = factory.build(
        made.optimizer, model, made.settings, total_steps=1, steps_per_epoch=1, total_epochs=1
    )
    schedule = optimizer.param_groups[0]["p_schedule"]
    steps = made.settings["steps_per_epoch"]
    assert steps == 50_000 // 128
    assert [schedule(s) for s in (0, 5 * steps, 6 * steps - 1)] == [6.0, 6.0, 6.0]
    assert schedule(200 * steps - 1) == 2.0
    assert schedule(7 * steps) < 6.0
    row = tables.setting("cifar10", "ResNet-18", "LPSGDM")
    for scale in (
        SCALES["cpu"],
        SCALES["smoke"],
    ):  # half an epoch of warm-up, and a tenth: the first is held
        small = protocol.recipe(row, options(scale, "p-cosine=after-warmup"))
        assert small.settings["held_epochs"] == 1
    none = protocol.recipe(row, options(SCALES["cpu"], "p-cosine=after-warmup", "warmup=0"))
    assert none.settings["held_epochs"] == 0


def test_the_versions_of_decay_hold_p_alike() -> None:
    made = {
        task.label: task.recipe
        for task in protocol.all_tasks(
            TARGETS["decay"].plan(options(SCALES["paper"], "p-cosine=after-warmup", seeds=1))
        )
    }
    for label, recipe in made.items():
        schedule = build(recipe).param_groups[0]["p_schedule"]
        steps = 50_000 // 128
        p = [6.0] * 3 if schedule is None else [schedule(e * steps) for e in (5, 102, 199)]
        # epoch 102 is the middle of the 195 epochs after the warm-up
        assert p == pytest.approx([6.0] * 3 if label == "constant-p" else [6.0, 4.0, 2.0]), label


@pytest.mark.parametrize("name", ["sgd", "sgdw", "adamw", "lion", "lpsgdm"])
def test_norms_and_biases_can_be_spared_from_decay(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    settings = {"lr": 0.1, "weight_decay": 0.5}
    optimizer = factory.build(
        name, model, settings, total_steps=4, steps_per_epoch=2, total_epochs=2
    )
    spare_vectors(optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 3]
    nn.init.ones_(model[1].bias)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    shrunk = [
        bool((p.detach() != b).any()) for p, b in zip(model.parameters(), before, strict=True)
    ]
    assert shrunk == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("warmup", "--choose: cannot read 'warmup': write key=value"),
        ("warmup=-1", "--choose warmup=-1: allowed: epochs of the full protocol"),
        ("sgd-decay=both", "allowed: coupled, decoupled"),
        ("gpus=0", "a whole number, 1 or more"),
        ("lr-end=nan", "a number, 0 or more"),
        ("sgd-momentun=averaged", "unknown choice 'sgd-momentun'.*did you mean 'sgd-momentum'"),
    ],
)
def test_wrong_choices_are_named(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_choices([text])


def test_wrong_scales_and_models_are_named() -> None:
    with pytest.raises(UserError, match="unknown scale 'gpu'"):
        get_scale("gpu")
    with pytest.raises(UserError, match="unknown model 'resnet19'.*resnet18"):
        model_names("resnet19")
    assert model_names("resnet50,vgg11") == ("VGG-11", "ResNet-50")


def test_the_documentation_lists_every_choice_with_its_default() -> None:
    text = DOCS.read_text()
    for choice in CHOICES:
        assert re.search(rf"`{choice.name}=.*", text), choice.name
        assert f"`{choice.name}={choice.default}`" in text
    for target in TARGETS:
        assert f"`{target}`" in text
