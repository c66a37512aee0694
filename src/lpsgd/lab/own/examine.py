"""Try what the user gave before anything is trained or written, and say what a recipe has to.

One training batch goes forwards and backwards, one test batch is scored. The digest of the first
weights and batches tells one problem from another, so that no folder mixes two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lpsgd.lab.errors import UserError
from lpsgd.lab.own.batches import count_rows
from lpsgd.lab.own.loaders import generator_states, own_data
from lpsgd.lab.own.objective import OwnObjective
from lpsgd.lab.own.problem import Problem
from lpsgd.lab.own.sources import splits
from lpsgd.lab.recipe import ProblemNote, Recipe
from lpsgd.lab.training.numerics import choose_device, numerics, rng_state, seed_all, set_rng_state


def examine(problem: Problem, recipe: Recipe) -> ProblemNote:
    """Try ``problem`` with the seed of ``recipe``; the global generators stay as they are."""
    before = rng_state()
    try:
        with numerics(recipe):
            return _examine(problem, recipe)
    finally:
        set_rng_state(before)


def batch_size(problem: Problem, seed: int) -> int | None:
    """The size of the batches, if the user's own loader decides it."""
    train, _, _ = splits(problem, seed)
    if train.batch_size is not None or train.indexed:
        return train.batch_size
    before, kept = rng_state(), generator_states(train.items)
    try:
        return count_rows(next(iter(train.items)))
    finally:
        for own, state in kept:
            own.set_state(state)
        set_rng_state(before)


def _examine(problem: Problem, recipe: Recipe) -> ProblemNote:
    model = _check_model(problem, recipe.seed) if problem.model is not None else None
    digest = hashlib.sha256()
    if model is not None:
        _add(digest, model.state_dict())
    metrics: dict[str, Any] = {}
    if problem.has_data:
        assert model is not None
        device = choose_device(recipe.device)
        data = own_data(problem, recipe, device, 0)
        first = next(data.train.epoch(0), None)
        if first is None or not len(data.train):
            raise UserError("train gave no batch")
        digest.update(f"{len(data.train)} {len(data.test)}".encode())
        _add(digest, first)
        objective = _objective(problem, first)
        metrics = {name: metric.direction for name, metric in objective.metrics.items()}
        _try_step(objective, model.to(device).train(), first)
        scored = next(data.test.epoch(0), None)
        if scored is None:
            raise UserError("test gave no batch")
        _add(digest, scored)
        _try_scores(objective, model, scored)
    return ProblemNote(metrics=metrics, digest=digest.hexdigest()[:16])


def _check_model(problem: Problem, seed: int) -> nn.Module:
    """A model; the function must make a new one at each call, and the same for each seed."""
    seed_all(seed)
    first = problem.make_model()
    kept = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    seed_all(seed)
    second = problem.make_model()
    shared = {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}
    if first is second or shared:
        raise UserError(
            "model returned the same object, or the same parameters, twice: each run needs a new "
            "network; make it inside the function"
        )
    again = second.state_dict()
    if kept.keys() != again.keys() or any(not _equal(kept[n], again[n]) for n in kept):
        raise UserError(
            "model returned other weights for the same seed: it is seeded before each call, so "
            "draw from torch's, numpy's or random's global generators, without a seed of its own"
        )
    return second


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _objective(problem: Problem, batch: Any) -> OwnObjective:
    """The objective; without a loss and metrics of the user's, classes are also counted."""
    target = batch[-1] if isinstance(batch, tuple | list) else None
    default = problem.loss is None and problem.step is None and problem.metrics is None
    classes = isinstance(target, Tensor) and not (
        target.dtype.is_floating_point or target.dtype.is_complex or target.dtype is torch.bool
    )
    return OwnObjective.of(problem, {"top1": "max"} if default and classes else {})


def _try_step(objective: OwnObjective, model: nn.Module, batch: Any) -> None:
    loss = objective.train(model, batch).loss
    if not loss.requires_grad:
        raise UserError("loss does not depend on the model's parameters: it has no gradient")
    if not math.isfinite(loss.item()):
        raise UserError(f"loss is {loss.item()} on the first batch, before any step")
    torch.autograd.backward(loss)


@torch.no_grad()
def _try_scores(objective: OwnObjective, model: nn.Module, batch: Any) -> None:
    model.eval()
    *sums, rows = objective.scores(model, batch).tolist()
    for name, value in zip(objective.names, sums, strict=True):
        if not math.isfinite(value / rows):
            raise UserError(f"metrics: {name} is {value / rows} on the first test batch")


def _add(digest: Any, value: Any) -> None:
    """Add tensors, numbers and texts of a batch or of weights; objects by their kind."""
    if isinstance(value, Mapping):
        value = dict(value)
        digest.update(repr(list(value)).encode())
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            digest.update(f"{tuple(leaf.shape)} {leaf.dtype}".encode())
            digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        elif isinstance(leaf, str | int | float | bool | None):
            digest.update(repr(leaf).encode())
        else:
            digest.update(type(leaf).__qualname__.encode())
