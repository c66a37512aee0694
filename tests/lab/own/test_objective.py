"""Batches of every form, against the same loss written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lpsgd.lab.errors import UserError
from lpsgd.lab.own.batches import count_rows, split_rows, to_device
from lpsgd.lab.own.losses import default_loss, top1
from lpsgd.lab.own.objective import OwnObjective
from lpsgd.lab.own.problem import Problem

from .problems import classes, numbers


def objective(**given: Any) -> OwnObjective:
    return OwnObjective.of(Problem(**given), {})


class Two(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 2))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (a + 2 * b) @ self.weight


def test_the_default_loss_follows_the_targets() -> None:
    x, y = classes(8)
    logits = x[:, :2]
    assert default_loss(logits, y) == functional.cross_entropy(logits, y)
    assert default_loss(x[:, :1], numbers(8)[1]) == functional.mse_loss(x[:, 0], numbers(8)[1])
    truth = y.bool()
    expected = functional.binary_cross_entropy_with_logits(x[:, 0], truth.float())
    assert default_loss(x[:, 0], truth) == expected
    text, goal = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    assert default_loss(text, goal) == functional.cross_entropy(text.transpose(1, 2), goal)
    assert top1(torch.eye(4)[[0, 1, 1]], torch.tensor([0, 1, 2])).item() == pytest.approx(200 / 3)
    with pytest.raises(UserError, match=r"\(8, 2\) and the target \(8,\)"):
        default_loss(x[:, :2], numbers(8)[1])


def test_forms_of_a_batch() -> None:
    x, y = classes(8)
    model, expected = Two(), functional.cross_entropy(Two()(x, x), y)
    forms = [(x, x, y), [(x, x), y], ({"a": x, "b": x}, y), {"a": x, "b": x, "labels": y}]
    for batch in forms:
        assert objective().outcome(model, batch).loss == expected
    given = objective(loss=functional.cross_entropy).outcome(model, forms[-1])
    assert given.loss == expected


def test_a_model_that_knows_its_loss() -> None:
    def model(ids: Tensor, labels: Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=(ids.sum(1) - labels).square().mean(), logits=ids)

    x, y = numbers(8)
    outcome = objective().outcome(model, {"ids": x, "labels": y + 1})
    assert outcome.loss == pytest.approx(1.0)
    assert outcome.output is x


def test_a_step_of_ones_own_gives_loss_and_scores() -> None:
    def step(model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": model(batch["x"]).mean(), "size": len(batch["x"])}

    made = OwnObjective.of(Problem(step=step, metrics={"size": "max"}), {})
    assert made.names == ("size", "loss")
    scores = made.scores(nn.Identity(), {"x": torch.full((4,), 3.0)})
    assert scores.tolist() == [16.0, 12.0, 4.0], "sums over four rows, and their number"


def test_rows_are_counted_divided_and_moved() -> None:
    batch = {"a": torch.arange(6).view(3, 2), "rest": [torch.arange(3), {"deep": torch.ones(3)}]}
    assert count_rows(batch) == 3
    parts = split_rows(batch, [1, 2])
    assert torch.equal(torch.cat([part["a"] for part in parts]), batch["a"])  # type: ignore[arg-type]
    assert [len(part["rest"][1]["deep"]) for part in parts] == [1, 2]
    moved = to_device(batch, torch.device("meta"))
    assert moved["rest"][1]["deep"].is_meta
    with pytest.raises(UserError, match="a str in it cannot be divided"):
        split_rows((torch.ones(2), "text"), [1, 1])


@pytest.mark.parametrize(
    ("given", "batch", "told"),
    [
        ({"loss": lambda o, t: o}, classes(4), r"loss is of shape \(4, 6\); allowed: a tensor"),
        ({"loss": lambda o, t: 1.0}, classes(4), "loss is 1.0; allowed: a tensor"),
        ({"step": lambda m, b: {"los": 1}}, classes(4), "step returned los and no 'loss'"),
        ({}, {"x": torch.ones(2)}, "keys x and none of labels"),
        ({}, torch.ones(3), "a batch is a Tensor; allowed"),
    ],
)
def test_what_is_wrong_with_a_batch_is_told(given: Any, batch: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        objective(**given).outcome(nn.Identity(), batch)


def test_metrics_say_which_values_are_good() -> None:
    def score(output: Any, target: Any) -> float:
        return 1.0

    given = {
        "val_accuracy": score,
        "word_error": score,
        "mine": ("max", score),
        "x": (score, "min"),
    }
    found = Problem(metrics=given).own_metrics()
    assert [metric.direction for metric in found.values()] == ["max", "min", "max", "min", "min"]
    for wrong, told in (
        ({"mine": score}, "whether high or low values of 'mine'"),
        ({"mine": 3}, "mine=3; allowed: a function"),
        ({"a b": score}, "'a b' is not a name"),
    ):
        with pytest.raises(UserError, match=told):
            Problem(metrics=wrong).own_metrics()
    with pytest.raises(UserError, match=r"top is a tensor of shape \(4,\); allowed: one number"):
        objective(metrics={"top": lambda o, t: t}).scores(nn.Linear(6, 2), classes(4))
