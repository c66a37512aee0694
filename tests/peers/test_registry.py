"""The registry: names, settings, import paths, and what is said about mistakes."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lpsgd.lab.cli import app as cli
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.trainer import Trainer
from lpsgd.peers import factory, grammar, registry
from tests.lab.small_runs import CPU, batches, load, load_weights, metrics, small_recipe
from tests.torch_versions import needs_torch

HORIZON = {"total_steps": 20, "steps_per_epoch": 5, "total_epochs": 4}


def build(text: str, model: nn.Module | None = None) -> torch.optim.Optimizer:
    name, settings = grammar.parse(text)
    return factory.build(name, model or nn.Linear(3, 2), settings, **HORIZON)


def test_descriptions_are_frozen_and_complete() -> None:
    for name in registry.names():
        spec = registry.get(name)
        assert spec.rule, name
        assert "\n" not in spec.rule, name
        assert spec.state, name
        assert spec.source, name
        assert spec.settings["lr"] > 0, name
        with pytest.raises(dataclasses.FrozenInstanceError):
            spec.name = "other"  # type: ignore[misc]
        with pytest.raises(TypeError):
            spec.settings["lr"] = 1  # type: ignore[index]


def test_the_named_ones_are_there() -> None:
    expected = {"sgd", "sgdw", "adam", "adamw", "adagrad", "rmsprop", "lpsgd", "lpsgdm"}
    assert expected <= set(registry.names())


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'sgd' is registered already"):
        registry.register(registry.get("sgd"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lpsgmd", "unknown optimizer 'lpsgmd' .did you mean 'lpsgd'"),
        ("sgd:momentun=0.9", "unknown setting 'momentun' .did you mean 'momentum'"),
        ("sgd:lr=fast", "lr='fast' is not a number"),
        ("sgd:nesterov=1", "nesterov=1 is not true or false"),
        ("sgd:lr=-1", "Invalid learning rate: -1"),
        ("sgdw:weight_decay=-1", "weight_decay=-1: must be at least 0"),
        ("lpsgdm:p=1", ": p must be a number from 2 to inf, got 1"),
        ("lpsgdm:p_schedule=cosin", "did you mean 'cosine'"),
        ("sgd:lr", "cannot import 'sgd:lr': .*a setting of sgd is written sgd:setting=value"),
        ("absent.module:Name", "cannot import 'absent.module:Name'"),
        ("torch.optim:Absent", "cannot import 'torch.optim:Absent'"),
        ("math:pi", "'math:pi' is a float, not a class or a function"),
        ("torch.nn:Identity", "made a Identity, not a torch Optimizer"),
        ("torch.optim:SGD:momentun=1", "did you mean 'momentum'"),
        ("pytorch_optimizer:SAM:lr=0.1", "'base_optimizer' must be given"),
        ("pytorch_optimizer:SophiaH:learning=0.1", "unknown setting 'learning'"),
        (
            "pytorch_optimizer:SAM:base_optimizer=torch.optim:SGD,momentun=1",
            "unexpected keyword argument 'momentun'",
        ),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(text)


@pytest.mark.parametrize("text", ["sgd", "adam", "adamw", "adagrad", "rmsprop"])
def test_torchs_own_get_the_settings(text: str) -> None:
    optimizer = build(f"{text}:lr=0.3,weight_decay=0.2")
    assert type(optimizer).__module__.startswith("torch.optim")
    assert optimizer.param_groups[0]["lr"] == 0.3
    assert optimizer.param_groups[0]["weight_decay"] == 0.2


def test_decoupled_decay_of_sgd() -> None:
    """theta <- (1 - lr*wd)*theta - lr*m, m <- b*m + g, in float64 by hand."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    theta = model.weight.detach().clone()
    optimizer = build("sgdw:lr=0.1,momentum=0.8,weight_decay=0.3", model)
    buffer = torch.zeros_like(theta)
    for step in range(5):
        optimizer.param_groups[0]["lr"] = lr = 0.1 / (step + 1)
        gradient = torch.randn_like(theta)
        model.weight.grad = gradient.clone()
        optimizer.step()
        buffer = 0.8 * buffer + gradient
        theta = (1 - lr * 0.3) * theta - lr * buffer
        torch.testing.assert_close(model.weight.detach(), theta, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_copies_of_sgdw_still_decay(twin_of: Callable[[Any], Any]) -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = build("sgdw:lr=0.1,momentum=0,weight_decay=0.5", model)
    twin, copied = twin_of((model, optimizer))
    twin.weight.grad = torch.zeros_like(twin.weight)
    copied.step()
    torch.testing.assert_close(twin.weight.detach(), 0.95 * model.weight.detach())


def test_sgdw_decays_after_the_closure_and_runs_hooks_once() -> None:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # torch wraps its class's step here
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = build("sgdw:lr=0.1,momentum=0,weight_decay=0.5", model)
    hooks: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: hooks.append("before"))
    optimizer.register_step_post_hook(lambda *_: hooks.append("after"))

    def closure() -> float:
        optimizer.zero_grad()
        loss = 3 * model.weight.square().sum() / 2
        loss.backward()
        return loss.item()

    theta = model.weight.item()
    for _ in range(3):  # the first step decays too, although no gradient was there before it
        assert optimizer.step(closure) == pytest.approx(3 * theta**2 / 2, rel=1e-12)
        theta = 0.95 * theta - 0.1 * 3 * theta
        assert model.weight.item() == pytest.approx(theta, rel=1e-12)
    assert hooks == ["before", "after"] * 3


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [6.0, 6.0, 6.0]),
        # per epoch of 5 steps: constant within the first epoch, then the second of four
        ("cosine", [6.0, 6.0, 2 + 4 * (1 + math.cos(math.pi / 3)) / 2]),
        ("linear", [6.0, None, None]),
        ("cosine-step", [6.0, None, None]),
        ("linear-alpha", [math.inf, None, None]),
    ],
)
def test_schedules_of_p(schedule: str, expected: list[float | None]) -> None:
    model = nn.Linear(3, 2)
    optimizer = build(f"lpsgdm:p=6,p_schedule={schedule}", model)
    seen = []
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        seen.append(float(optimizer.param_groups[0]["p"]))
    for step, value in zip((0, 4, 5), expected, strict=True):
        if value is not None:
            assert seen[step] == pytest.approx(value)
    if schedule in ("linear", "cosine-step", "linear-alpha"):
        assert seen[5] < seen[1], "these move within an epoch"


def test_lpmuon_takes_any_exponent_and_splits_the_model() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = build("lpmuon:weight_decay=0.1", model)
    marked = [id(p) for g in optimizer.param_groups if g["use_muon"] for p in g["params"]]
    assert marked == [id(model[1].weight)]
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}
    for text, p in (
        ("lpmuon", math.inf),
        ("lpmuon:p=-3", -3.0),
        ("lpmuon:p=5", 5.0),
        ("lpmuon:p_schedule=linear-alpha", math.inf),
        ("lpmuon:p=-4,p_schedule=linear-alpha", -4.0),
        ("lpmuon:p=6,p_schedule=cosine", 6.0),
    ):
        assert build(text, model).param_groups[0]["p"] == pytest.approx(p)
    with pytest.raises(ValueError, match="p must be a number from 2 to inf, got -3"):
        build("lpsgdm:p=-3,p_schedule=constant")
    with pytest.raises(ValueError, match="optimizer 'lpmuon'.*p_max"):
        build("lpmuon:p=inf,p_schedule=cosine")


def make_for_model(model: nn.Module, *, lr: float = 0.5) -> torch.optim.Optimizer:
    """A factory as a user might write one."""
    assert isinstance(model, nn.Module)
    return torch.optim.SGD(model.parameters(), lr=lr)


def test_a_factory_that_takes_the_model() -> None:
    path = f"{__name__}:make_for_model"
    assert build(f"{path}:lr=0.25").param_groups[0]["lr"] == 0.25
    factory.try_out(path, {})
    with pytest.raises(ValueError, match="unknown setting 'lrr'"):
        factory.try_out(path, {"lrr": 1})
    assert registry.get(path).rule == "A factory as a user might write one."


SAM = "pytorch_optimizer:SAM:base_optimizer=torch.optim:SGD,lr=0.05,momentum=0.9,rho=0.05"


SHAMPOO = "pytorch_optimizer:Shampoo:lr=0.05,preconditioning_compute_steps=3"
SOPHIA = "pytorch_optimizer:SophiaH:lr=0.05,update_period=2"
LBFGS = "torch.optim:LBFGS:lr=0.1,max_iter=2"
LABORATORY = needs_torch(2, 6, "the laboratory does")


@LABORATORY
@pytest.mark.parametrize(
    ("text", "needs"),
    [(SHAMPOO, {}), (SOPHIA, {"create_graph": True}), (LBFGS, {"closure": True})],
)
def test_foreign_optimizers_run_as_in_a_plain_loop(
    tmp_path: Path, text: str, needs: dict[str, Any]
) -> None:
    recipe = small_recipe(text, width=4, **needs)
    assert train(recipe, tmp_path).state == "complete"
    assert {line["p"] for line in metrics(tmp_path)} == {None}
    start = Trainer(recipe, load(recipe), CPU)
    model, optimizer = start.model, start.optimizer
    for step, (images, labels) in enumerate(batches(start)):
        optimizer.param_groups[0]["lr"] = recipe.settings["lr"] * start.lr_factor(step)

        def closure(x: torch.Tensor = images, y: torch.Tensor = labels) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(model, x, y)
            with warnings.catch_warnings():  # torch warns of the cycle that this makes
                warnings.simplefilter("ignore")
                loss.backward(create_graph=recipe.create_graph)
            return loss

        closure()
        optimizer.step(closure if recipe.closure else None)
    assert_weights(tmp_path, model)


def assert_weights(folder: Path, model: nn.Module) -> None:
    saved = load_weights(folder)["trainer"]["model"]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved[name], value, rtol=1e-4, atol=1e-5)


@LABORATORY
def test_sam_in_the_harness_is_sam_by_hand(tmp_path: Path) -> None:
    """The gradient at theta + rho*g/||g|| steers the step from theta."""
    recipe = small_recipe(SAM, closure=True)
    train(recipe, tmp_path)
    start = Trainer(recipe, load(recipe), CPU)
    model, buffers = start.model, None
    for step, (images, labels) in enumerate(batches(start)):
        parameters = list(model.parameters())
        gradient = torch.autograd.grad(_loss(model, images, labels), parameters)
        norm = torch.cat([g.flatten() for g in gradient]).norm()
        with torch.no_grad():
            for p, g in zip(parameters, gradient, strict=True):
                p.add_(g, alpha=0.05 / norm.item())
        sharp = torch.autograd.grad(_loss(model, images, labels), parameters)
        buffers = (
            list(sharp)
            if buffers is None
            else [0.9 * b + g for b, g in zip(buffers, sharp, strict=True)]
        )
        with torch.no_grad():
            for p, g, b in zip(parameters, gradient, buffers, strict=True):
                p.sub_(g, alpha=0.05 / norm.item()).sub_(b, alpha=0.05 * start.lr_factor(step))
    assert_weights(tmp_path, model)


def _loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels)


def test_the_command_prints_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["optimizers"]) == 0
    shown = capsys.readouterr().out
    for name in registry.names():
        assert registry.get(name).rule in shown
        assert registry.get(name).source in shown
    assert "lr=0.001" in shown
    assert cli.main(["optimizers", "lpsgdm", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["settings"]["p"] == 6.0
    assert row["state"] == "1 x parameter"
    assert cli.main(["optimizers", "lpsgmd"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert cli.main(["optimizers", "pytorch_optimizer:SAM", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["settings"]["base_optimizer"] == "required"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lpsgdm:p_schedule=5", "unknown p_schedule '5'; there are: cosine"),
        ("lpsgdm:p_schedule=none", "unknown p_schedule 'None'"),
        ("adamw:betas=(0.9)", r"betas=\[0.9\] is not 2 numbers"),
        ("lion:betas=(0.9,x)", r"betas=\[0.9, 'x'\] is not 2 numbers"),
        ("sgd:lr=nan", "lr=nan is not a number"),
        ("sgd:lr=1,lr=2", "the setting 'lr' is given twice"),
    ],
)
def test_values_that_cannot_be_right_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        factory.try_out(*grammar.parse(text))


class Told(torch.optim.SGD):
    """Wants to know how long training will be."""

    def __init__(self, params, lr=0.1, *, total_steps):
        super().__init__(params, lr)
        self.total_steps = total_steps


def test_an_import_path_that_asks_for_the_number_of_steps_is_told():
    path = f"{__name__}:Told"
    assert registry.get(path).required == ()
    optimizer = factory.build(
        path, torch.nn.Linear(2, 2), {}, total_steps=30, steps_per_epoch=10, total_epochs=3
    )
    assert optimizer.total_steps == 30
