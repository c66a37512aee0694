"""The user's data as batches: the same for every optimizer, and again after a stop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from lpsgd.lab.errors import UserError
from lpsgd.lab.own.loaders import own_data
from lpsgd.lab.own.problem import Problem
from lpsgd.lab.recipe import make_recipe

from .problems import Noisy, Stream, classes

CPU = torch.device("cpu")


def load(train: Any, test: Any = None, workers: int = 0, **values: Any) -> Any:
    recipe = make_recipe({"batch_size": 16, "seed": 3, **values})
    return own_data(Problem(train=train, test=test or classes(20)), recipe, CPU, workers)


def same(one: Any, other: Any) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


INDEXED = {
    "tensors": classes,
    "dataset": Noisy,
    "loader": lambda: DataLoader(Noisy(), batch_size=16, shuffle=True),
    "loader of tensors": lambda: DataLoader(TensorDataset(*classes()), 16, shuffle=True),
}


@pytest.mark.parametrize("kind", INDEXED)
def test_a_batch_is_a_function_of_seed_epoch_and_number(kind: str) -> None:
    data = load(INDEXED[kind]())
    first, again = list(data.train.epoch(1)), list(data.train.epoch(1))
    assert len(first) == len(data.train) == 6
    torch.manual_seed(99)  # whatever training draws
    assert same(first, again)
    assert same(first[4:], list(data.train.epoch(1, start=4))), "a stopped epoch continues"
    assert not same(first, list(data.train.epoch(2)))
    assert not same(first, list(load(INDEXED[kind](), seed=4).train.epoch(1)))


def test_reading_draws_nothing_from_training() -> None:
    data = load(Noisy())
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    next(data.train.epoch(0))
    assert torch.equal(torch.rand(3), expected)


def test_worker_processes_change_no_byte() -> None:
    assert same(load(Noisy()).train.epoch(0), load(Noisy(), workers=2).train.epoch(0))


def test_every_example_is_trained_on_once() -> None:
    rows = torch.cat([x for x, _ in load(classes()).train.epoch(0)])
    assert torch.equal(rows.sort(0).values, classes()[0].sort(0).values)
    kept = load(DataLoader(TensorDataset(*classes(50)), 16, drop_last=False, shuffle=True))
    assert [len(x) for x, _ in kept.train.epoch(0)] == [16, 16, 16, 2]
    assert [len(x) for x, _ in load(classes(50)).train.epoch(0)] == [16, 16, 16]
    ordered = load(DataLoader(TensorDataset(*classes()), 16, shuffle=False))
    assert torch.equal(next(ordered.train.epoch(0))[0], classes()[0][:16])


def test_what_is_held_out_is_not_trained_on() -> None:
    data = load(classes(), val_size=32)
    trained = {tuple(x.tolist()) for x in torch.cat([x for x, _ in data.train.epoch(0)])}
    held = {tuple(x.tolist()) for x in torch.cat([x for x, _ in data.val.epoch(0)])}
    assert (len(trained), len(held), trained & held) == (64, 32, set())
    assert load(classes(), train_size=40, test_size=7).test.size == 7


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Stream(), batch_size=16),
        lambda: DataLoader(Noisy(), 16, sampler=WeightedRandomSampler([1.0] * 96, 96)),
        lambda: (
            [(x, y) for x, y in zip(*(t.split(16) for t in classes()), strict=True)].__iter__
            and DataLoader(Noisy(), 16, sampler=WeightedRandomSampler([1.0] * 96, 64))
        ),
    ],
)
def test_what_has_no_index_is_the_same_for_every_optimizer(make: Any) -> None:
    data = load(make())
    assert not data.train.resumable
    assert len(list(data.train.epoch(0))) == len(data.train)
    torch.manual_seed(5)
    first = list(data.train.epoch(1))
    torch.manual_seed(6)
    assert same(first, load(make()).train.epoch(1))
    assert not same(first, data.train.epoch(2))


def test_scoring_a_stream_leaves_the_generators_alone() -> None:
    data = load(classes(), test=DataLoader(Stream(40), batch_size=16))
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert len(list(data.test.epoch(0))) == 3
    assert torch.equal(torch.rand(3), expected)


def test_a_function_of_the_seed_gives_the_loaders() -> None:
    def loaders(seed: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        x, y = classes()
        return (x + seed, y), classes(20)

    problem = Problem(train=loaders)
    data = [own_data(problem, make_recipe({"batch_size": 96, "seed": s}), CPU, 0) for s in (0, 5)]
    (a, _), (b, _) = (next(d.train.epoch(0)) for d in data)
    assert b.mean() - a.mean() == pytest.approx(5, abs=1e-4)


class Endless:
    """An iterable that does not say how long it is."""

    def __iter__(self) -> Any:
        return iter([classes()])


@pytest.mark.parametrize(
    ("train", "test", "told"),
    [
        ((classes()[0], classes(20)[1]), None, "train has tensors of shapes"),
        ((torch.zeros(0, 2), torch.zeros(0)), None, "train is empty"),
        (classes(), (torch.zeros(0, 2), torch.zeros(0)), "test is empty: .* score"),
        (Endless(), None, "train has no length"),
        (7, None, "train is a int; allowed: a Dataset"),
        (classes(8), None, "batch_size is 16; train has only 8 examples"),
    ],
)
def test_what_is_wrong_with_the_data_is_told(train: Any, test: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        load(train, test)


def test_a_function_gives_two_or_three_loaders() -> None:
    with pytest.raises(UserError, match="returned 4 loaders"):
        own_data(Problem(train=lambda seed: (1, 2, 3, 4)), make_recipe({}), CPU, 0)
    with pytest.raises(UserError, match="test is missing"):
        own_data(Problem(train=classes()), make_recipe({}), CPU, 0)


def test_an_iterator_that_is_used_up_is_told() -> None:
    class Once(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter([])

    data = load(Once(Stream(), batch_size=16))
    with pytest.raises(UserError, match="gave 0 batches in epoch 1, and its length is 6"):
        list(data.train.epoch(0))
    with pytest.raises(UserError, match="no index"):
        load(DataLoader(Stream(), batch_size=16), val_size=3)
