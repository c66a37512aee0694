"""Stratified subsets: proportions, no overlap, a pure function of the seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpsgd.lab.data.seeding import derive, generator
from lpsgd.lab.data.subsets import pick_test, split_train, stratified
from lpsgd.lab.errors import UserError


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_each_class_gets_its_share_rounded_up_or_down(labels, data):
    labels = torch.tensor(labels)
    count = data.draw(st.integers(0, len(labels)))
    chosen = stratified(labels, count, generator(0))
    assert len(chosen) == count == len(chosen.unique())
    assert torch.equal(chosen, chosen.sort().values)
    for label in range(6):
        share = count * int((labels == label).sum()) / len(labels)
        assert abs(int((labels[chosen] == label).sum()) - share) < 1


def test_largest_remainders_win():
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    # shares of 7: 3.5, 2.1, 1.4 -> 3 + 2 + 1, and the seventh goes to class 0
    chosen = labels[stratified(labels, 7, generator(0))]
    assert torch.bincount(chosen).tolist() == [4, 2, 1]


def test_validation_never_overlaps_and_does_not_depend_on_train_size():
    labels = torch.arange(200) % 10
    _, val = split_train(labels, train_size=None, val_size=50, seed=3)
    for train_size in (20, 100, 150, None):
        train, again = split_train(labels, train_size=train_size, val_size=50, seed=3)
        assert torch.equal(val, again)
        assert len(train) == (train_size or 150)
        assert not set(train.tolist()) & set(val.tolist())
        assert torch.bincount(labels[train]).tolist() == [len(train) // 10] * 10
    assert torch.bincount(labels[val]).tolist() == [5] * 10


def test_subsets_follow_the_seed_and_the_test_subset_does_not():
    labels = torch.arange(200) % 10
    first, again, other = (
        split_train(labels, train_size=50, val_size=20, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[1], other[1])
    assert torch.equal(pick_test(labels, 30), pick_test(labels, 30))
    assert torch.equal(pick_test(labels, None), torch.arange(200))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"val_size": 200}, "val_size is 200; allowed: 0 to 199 of 200"),
        ({"val_size": -1}, "val_size is -1"),
        ({"train_size": 0}, "train_size is 0; allowed: 1 to 200"),
        ({"train_size": 191, "val_size": 10}, "train_size is 191; allowed: 1 to 190"),
    ],
)
def test_sizes_that_do_not_fit(sizes, message):
    sizes = {"train_size": None, "val_size": 0} | sizes
    with pytest.raises(UserError, match=message):
        split_train(torch.arange(200) % 10, **sizes, seed=0)


@pytest.mark.parametrize("size", [0, 201])
def test_test_size_that_does_not_fit(size):
    with pytest.raises(UserError, match=f"test_size is {size}; allowed: 1 to 200"):
        pick_test(torch.arange(200) % 10, size)


def test_seeds_of_neighbouring_uses_differ():
    seeds = {
        derive(seed, use, epoch)
        for seed in range(30)
        for use in ("order", "augment")
        for epoch in range(30)
    }
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == 1800  # torch's CPU generator takes 32 bits
