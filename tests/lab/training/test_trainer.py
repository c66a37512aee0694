"""The trainer's numbers against loops and formulas written out by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpsgd.geometry import gradient_density
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.metrics import state_bytes
from lpsgd.lab.training.numerics import numerics
from lpsgd.lab.training.trainer import Trainer
from tests.lab.small_runs import CPU, batches, load, metrics, small_recipe


def make(optimizer: str = "sgd:lr=0.05", **values: Any) -> Trainer:
    recipe = small_recipe(optimizer, **values)
    return Trainer(recipe, load(recipe), CPU)


def test_a_run_is_the_plain_loop_that_it_stands_for(tmp_path: Path) -> None:
    """SGD with warm-up and cosine on a small ResNet, to the last bit."""
    recipe = small_recipe("sgd:lr=0.05,weight_decay=1e-3", model="resnet18")
    train(recipe, tmp_path)
    with numerics(recipe):
        start = Trainer(recipe, load(recipe), CPU)
        model, data = start.model, start.data
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
        losses: list[float] = []
        for step, (images, labels) in enumerate(batches(start)):
            optimizer.param_groups[0]["lr"] = 0.05 * start.lr_factor(step)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            outputs = [(model(x), y) for x, y in data.test.epoch(0)]
    logits, labels = (torch.cat(part) for part in zip(*outputs, strict=True))
    last = metrics(tmp_path)[-1]
    assert last["train_nll"] == pytest.approx(sum(losses[4:]) / 4, abs=1e-12)
    assert last["test_nll"] == pytest.approx(cross_entropy(logits, labels).item(), abs=1e-6)
    assert last["test_top1"] == 100 * (logits.argmax(1) == labels).double().mean().item()
    among5 = (logits.topk(5).indices == labels[:, None]).any(1)
    assert last["test_top5"] == 100 * among5.double().mean().item()
    from tests.lab.small_runs import load_weights

    saved = load_weights(tmp_path)["trainer"]["model"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name]), name


@pytest.mark.parametrize("optimizer", ["adamw", "lpsgdm:lr=1e-2", "sgdw:weight_decay=0.1"])
def test_a_seed_gives_every_optimizer_the_same_start_and_batches(optimizer: str) -> None:
    one, other = make("sgd", seed=3), make(optimizer, seed=3)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    for (x, y), (v, w) in zip(batches(one), batches(other), strict=True):
        assert torch.equal(x, v)
        assert torch.equal(y, w)
    different = make("sgd", seed=4)
    first, second = next(one.model.parameters()), next(different.model.parameters())
    assert not torch.equal(first, second)


def test_parts_of_a_batch_add_up_to_its_gradient() -> None:
    whole, parts = make(), make(accumulate=3)  # 32 images in parts of 11, 11 and 10
    for images, labels in batches(whole):
        whole.train_step((images, labels))
        parts.train_step((images, labels))
    for a, b in zip(whole.parameters, parts.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert parts.sums.nll.item() == pytest.approx(whole.sums.nll.item(), rel=1e-5)
    assert parts.sums.correct.item() == whole.sums.correct.item()


def test_text_is_split_between_inputs() -> None:
    recipe = small_recipe("sgd", dataset="text", model="gpt", train_size=64)
    whole = Trainer(recipe, load(recipe), CPU)
    parts = Trainer(recipe.with_changes(accumulate=4), load(recipe), CPU)
    inputs, targets = next(iter(whole.data.train.epoch(0)))
    whole.train_step((inputs, targets))
    parts.train_step((inputs, targets))
    for a, b in zip(whole.parameters, parts.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_clipping_limits_the_step_and_reports_the_norm_before() -> None:
    trainer = make("sgd:lr=1.0,momentum=0.0,weight_decay=0.0", clip_norm=1e-3, warmup_epochs=0)
    images, labels = batches(trainer)[0]
    before = [p.detach().clone() for p in trainer.parameters]
    trainer.train_step((images, labels))
    moved = torch.cat([(p - q).flatten() for p, q in zip(trainer.parameters, before, strict=True)])
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert trainer.sums.grad_norm.item() > 0.01


@pytest.mark.parametrize(
    "optimizer",
    [
        "pytorch_optimizer:SAM:base_optimizer=torch.optim:SGD,lr=1.0",
        "torch.optim:LBFGS:lr=1.0,max_iter=1",
    ],
)
def test_gradients_that_an_optimizer_asks_for_are_clipped_too(optimizer: str) -> None:
    limit = 1e-4
    fixed = {"lr_schedule": "constant", "warmup_epochs": 0.0}
    recipe = small_recipe(optimizer, closure=True, clip_norm=limit, **fixed)
    trainer = Trainer(recipe, load(recipe), CPU)
    before = [p.detach().clone() for p in trainer.parameters]
    trainer.train_step(batches(trainer)[0])
    moved = [p.detach() - old for p, old in zip(trainer.parameters, before, strict=True)]
    # at lr 1 SGD moves by the gradient, LBFGS's first step by min(1, 1/||g||_1) of it
    assert 0 < float(torch.nn.utils.get_total_norm(moved)) <= limit * 1.01


def test_measurements_of_the_step() -> None:
    trainer = make("sgd:lr=0.1,momentum=0.0,weight_decay=0.0", warmup_epochs=0)
    images, labels = batches(trainer)[0]
    model = copy.deepcopy(trainer.model)
    cross_entropy(model(images), labels).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    trainer.train_step((images, labels), measure=True)
    assert trainer.sums.grad_norm.item() == pytest.approx(gradient.norm().item(), rel=1e-5)
    rms = gradient.square().mean().sqrt().item()
    assert trainer.sums.update_rms == pytest.approx(0.1 * rms, rel=1e-3)
    assert trainer.sums.grad_density == pytest.approx(float(gradient_density(gradient)), rel=1e-6)
    assert trainer.sums.lr == 0.1
    assert trainer.sums.p is None


def test_label_smoothing_trains_but_is_not_reported() -> None:
    trainer = make(label_smoothing=0.2)
    images, labels = batches(trainer)[0]
    model = copy.deepcopy(trainer.model)
    logits = model(images)
    expected = cross_entropy(logits, labels, reduction="sum").item()
    cross_entropy(logits, labels, label_smoothing=0.2).backward()
    trainer.train_step((images, labels))
    assert trainer.sums.nll.item() == pytest.approx(expected, rel=1e-6)
    for p, q in zip(trainer.model.parameters(), model.parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, q.grad)


def test_averaged_weights_are_what_is_scored() -> None:
    trainer = make("sgd:lr=0.05", ema=0.8, model="resnet18")
    average: dict[str, Tensor] = {}
    for images, labels in batches(trainer):
        trainer.train_step((images, labels))
        for name, value in trainer.model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                continue
            now = value.double()
            average[name] = now if name not in average else 0.8 * average[name] + 0.2 * now
    assert trainer.ema is not None
    for name, expected in average.items():
        found = trainer.ema.module.state_dict()[name].double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    plain: nn.Module = copy.deepcopy(trainer.model)
    plain.load_state_dict({k: v.float() for k, v in average.items()}, strict=False)
    plain.eval()
    outputs = [(plain(x), y) for x, y in trainer.data.test.epoch(0)]
    logits, labels = (torch.cat(part) for part in zip(*outputs, strict=True))
    scores = trainer.evaluate(trainer.data.test.epoch(0))
    assert scores["nll"] == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-4)
    assert trainer.model.training, "scoring must leave the network in training mode"


def test_second_order_gradients_are_the_same_gradients() -> None:
    plain = make("torch.optim:SGD:lr=0.05")
    graph = make("torch.optim:SGD:lr=0.05", create_graph=True, accumulate=2)
    for images, labels in batches(plain)[:3]:
        plain.train_step((images, labels))
        graph.train_step((images, labels))
    for a, b in zip(plain.parameters, graph.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_p_of_an_imported_class_may_mean_something_else() -> None:
    assert make("pytorch_optimizer:SophiaH", create_graph=True).current_p() is None
    assert make("lpsgdm:p=5").current_p() == 5.0


def test_scores_on_the_whole_training_set_come_when_asked_for(tmp_path: Path) -> None:
    train(small_recipe(epochs=5, train_eval_every=2), tmp_path / "some")
    some = [line["train_nll_eval"] for line in metrics(tmp_path / "some")]
    assert [value is not None for value in some] == [False, True, False, True, True]
    train(small_recipe(val_size=32), tmp_path / "none")
    line = metrics(tmp_path / "none")[-1]
    assert line["train_nll_eval"] is None
    assert line["val_nll"] is not None


@pytest.mark.slow
def test_compiling_gives_the_same_network(tmp_path: Path) -> None:
    pytest.importorskip("torch._inductor", reason="torch.compile is not available")
    plain, compiled = make(), make(compile=True)
    torch._dynamo.reset()
    for images, labels in batches(plain)[:2]:
        plain.train_step((images, labels))
        compiled.train_step((images, labels))
    for a, b in zip(plain.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert compiled.state_dict()["model"].keys() == plain.state_dict()["model"].keys()


def test_bytes_of_state_count_what_lies_in_lists() -> None:
    """L-BFGS after two moves: direction, gradient, one pair of history; three numbers."""
    x = nn.Parameter(torch.arange(10.0))
    optimizer = torch.optim.LBFGS([x], lr=0.1, max_iter=3)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (x**4).sum()
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    assert state_bytes(optimizer) == 4 * (4 * 10 + 3)
