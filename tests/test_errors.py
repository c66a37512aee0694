"""Every error names the argument, the value and what is allowed, and leaves things as they were."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lpsgd import LPSGD, LPSGDM, ConstantP, CosineP, PScheduler, param_groups
from lpsgd._base import LpOptimizer
from tests.optimizer_problem import arrays, gradients, largest_error, run, start
from tests.torch_versions import needs_torch

BAD: list[tuple[str, Any, str]] = [
    ("lr", -1.0, "lr must be a finite number >= 0, got -1.0"),
    ("lr", math.nan, "lr must be a finite number >= 0, got nan"),
    ("lr", math.inf, "lr must be a finite number >= 0, got inf"),
    ("lr", "fast", "lr must be a finite number >= 0, got 'fast'"),
    ("lr", True, "lr must be a finite number >= 0, got True"),
    ("lr", torch.tensor(-0.5), "lr must be a finite number >= 0, got -0.5"),
    ("lr", torch.ones(2), "lr must be a finite number >= 0 or a real tensor of one element"),
    ("weight_decay", -0.1, "weight_decay must be a finite number >= 0, got -0.1"),
    ("weight_decay", math.nan, "weight_decay must be a finite number >= 0, got nan"),
    ("eps", 0.0, "eps must be a finite number > 0, got 0.0"),
    ("eps", -1e-8, "eps must be a finite number > 0, got -1e-08"),
    ("eps", math.nan, "eps must be a finite number > 0, got nan"),
    ("p", 1.5, "p must be a number from 2 to inf, got 1.5"),
    ("p", math.nan, "p must be a number from 2 to inf, got nan"),
    ("p", -math.inf, "p must be a number from 2 to inf, got -inf"),
    ("p", torch.tensor(1.0), "p must be a number from 2 to inf, got 1.0"),
    ("p", torch.ones(1), "p must be a number from 2 to inf, a real 0-d tensor, or a schedule"),
    ("p", "six", "p must be a number from 2 to inf, a real 0-d tensor, or a schedule"),
    ("p", None, "p must be a number from 2 to inf, a real 0-d tensor, or a schedule"),
    ("normalize", "l2", "normalize must be one of None, 'dual', 'rms', got 'l2'"),
    ("normalize", True, "normalize must be one of None, 'dual', 'rms', got True"),
    ("maximize", 1, "maximize must be True or False, got 1"),
    ("foreach", "yes", "foreach must be True, False or None, got 'yes'"),
    ("fused", 0, "fused must be True, False or None, got 0"),
    ("capturable", None, "capturable must be True or False, got None"),
    ("differentiable", "no", "differentiable must be True or False, got 'no'"),
]
BAD_MOMENTUM: list[tuple[str, Any, str]] = [
    ("momentum", 1.0, "momentum must be a number in [0, 1), got 1.0"),
    ("momentum", -0.1, "momentum must be a number in [0, 1), got -0.1"),
    ("momentum", math.nan, "momentum must be a number in [0, 1), got nan"),
    (
        "state_dtype",
        torch.int32,
        "state_dtype must be None, torch.int8 or a floating-point torch.dtype, got torch.int32",
    ),
    ("state_dtype", "bf16", "state_dtype must be None, torch.int8 or a floating-point torch.dtype"),
]
CASES = [(cls, *case) for cls in (LPSGD, LPSGDM) for case in BAD] + [
    (LPSGDM, *case) for case in BAD_MOMENTUM
]


@pytest.mark.parametrize(("cls", "name", "value", "message"), CASES)
def test_bad_arguments(cls: type[LPSGD], name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cls(start(), **{name: value})
    with pytest.raises(ValueError, match=re.escape(message)):
        cls([{"params": start(), name: value}])
    optimizer = cls(start())
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.add_param_group({"params": start(), name: value})
    assert len(optimizer.param_groups) == 1  # nothing half added


def test_exclusive_ways_to_run() -> None:
    with pytest.raises(ValueError, match="foreach=True and fused=True exclude each other"):
        LPSGDM(start(), foreach=True, fused=True)
    with pytest.raises(ValueError, match="differentiable=True and foreach=True exclude each other"):
        LPSGDM(start(), foreach=True, differentiable=True)
    with pytest.raises(ValueError, match="differentiable=True and fused=True exclude each other"):
        LPSGDM(start(), fused=True, differentiable=True)


def test_bad_schedule_in_a_group() -> None:
    with pytest.raises(ValueError, match="p_schedule must be None or callable, got 6"):
        LPSGDM([{"params": start(), "p_schedule": 6}])
    schedule = CosineP(5, total_steps=9)
    optimizer = LPSGDM([{"params": start(), "p_schedule": schedule}])
    assert optimizer.param_groups[0]["p"] == 5.0


def test_p_is_checked_at_each_step_before_anything_moves() -> None:
    params, grads = start(), gradients(3)
    groups = [{"params": params[:2]}, {"params": params[2:]}]
    optimizer = LPSGDM(groups, p=4.0)
    run(optimizer, params, grads[:1])
    before = arrays(params)
    for bad in (1.9, math.nan, "two", torch.tensor(0.0)):
        optimizer.param_groups[1]["p"] = bad
        with pytest.raises(ValueError, match="p must be a number from 2 to inf"):
            run(optimizer, params, grads[1:2])
        assert largest_error(params, before) == 0  # the first group has not moved either
        assert int(optimizer.state[params[0]]["step"]) == 1


def test_a_schedule_that_gives_nonsense_is_named() -> None:
    params = start()
    optimizer = LPSGDM(params, p=lambda step: 4.0 - step)
    run(optimizer, params, gradients(3))
    with pytest.raises(
        ValueError, match=r"the p schedule .*lambda.* gave p=1.0 at step 3; p must be"
    ):
        run(optimizer, params, gradients(1))
    with pytest.raises(ValueError, match=r"gave p='x' at step 0"):
        LPSGDM(start(), p=lambda step: "x")
    with pytest.raises(ValueError, match=r"gave p=1.0"):
        optimizer.add_param_group({"params": start(), "p": lambda step: 1.0})
    assert len(optimizer.param_groups) == 1


def test_numbers_of_numpy_are_numbers() -> None:
    optimizer = LPSGDM(
        [{"params": start(), "weight_decay": np.float64(0.1)}],
        lr=np.float32(0.5),
        p=np.int64(6),
        momentum=np.float64(0.5),
    )
    group = optimizer.param_groups[0]
    assert [type(group[k]) for k in ("lr", "p", "momentum", "weight_decay")] == [
        float,
        int,
        float,
        float,
    ]
    schedule = CosineP(np.float32(6), total_steps=np.int64(5))
    assert schedule == CosineP(6, total_steps=5)
    assert type(schedule.total_steps) is int
    assert LPSGDM(start(), p=lambda step: np.float32(4)).param_groups[0]["p"] == 4.0


def test_a_tensor_p_is_each_groups_own() -> None:
    for p in (torch.tensor(4.0), torch.tensor(4)):
        groups = [{"params": start()[:1]}, {"params": start()[1:]}]
        optimizer = LPSGDM(groups, p=p)
        PScheduler(optimizer, [ConstantP(4.5), ConstantP(3)])
        assert [float(group["p"]) for group in optimizer.param_groups] == [4.5, 3.0]


@pytest.mark.parametrize("foreach", [False, True])
def test_sparse_gradients_are_refused_with_advice(foreach: bool) -> None:
    table = nn.Embedding(10, 3, sparse=True)
    other = torch.ones(3, requires_grad=True)
    optimizer = LPSGDM([other, *table.parameters()], foreach=foreach)
    (table(torch.tensor([1, 2])).sum() + other.sum()).backward()
    before = table.weight.detach().clone()
    with pytest.raises(
        RuntimeError, match=r"sparse gradients .*sparse=False.*to_dense.*SparseAdam"
    ):
        optimizer.step()
    assert torch.equal(table.weight, before)
    assert other.tolist() == [1.0] * 3


def test_torchs_own_errors_are_kept() -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        LPSGDM([])
    with pytest.raises(TypeError, match="param_group must be a dict"):
        LPSGDM(start()).add_param_group(start())
    (x,) = start()[:1]
    with pytest.raises(ValueError, match="more than one parameter group"):
        LPSGDM([{"params": [x]}, {"params": [x]}])
    with pytest.raises(TypeError, match="has no update rule"):
        bare = LpOptimizer([x], {"lr": 0.1, "capturable": False, "differentiable": False})
        x.grad = torch.ones_like(x)
        bare.step()


def test_param_groups() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2), nn.Embedding(5, 2)
    )
    model[3].bias.requires_grad_(False)
    decayed, spared = param_groups(model, 0.1, lr=0.3)
    assert decayed["param_names"] == ["0.weight", "3.weight", "4.weight"]
    assert spared["param_names"] == ["0.bias", "1.weight", "1.bias"]
    assert (decayed["weight_decay"], spared["weight_decay"], decayed["lr"]) == (0.1, 0.0, 0.3)
    optimizer = LPSGDM([decayed, spared])
    assert optimizer.param_groups[0]["param_names"] == decayed["param_names"]
    fewer = param_groups(model, 0.1, no_decay=lambda name, _: name.startswith("4"))
    assert fewer[0]["param_names"] == ["0.weight", "3.weight"]
    assert len(param_groups(nn.Linear(2, 2, bias=False), 0.1)) == 1
    with pytest.raises(ValueError, match="weight_decay must be a finite number >= 0, got -1"):
        param_groups(model, -1)


class Mixed(nn.Module):
    """One of each kind; the head shares its weight with the embedding."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.kernel = nn.Conv1d(4, 4, 3)
        self.batch_norm = nn.BatchNorm1d(4)
        self.inner = nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.ones(4))
        self.classes = nn.Linear(4, 5)
        if tied:
            self.classes.weight = self.table.weight


@pytest.mark.parametrize("tied", [False, True])
def test_param_groups_of_every_kind(tied: bool) -> None:
    kinds = ("embeddings", "head", "norms", "biases", "convolutions")
    settings = {kind: {"lr": float(number)} for number, kind in enumerate(kinds, start=1)}
    settings["head"]["weight_decay"] = 0.5
    groups = param_groups(Mixed(tied), 0.1, lr=0.3, **settings)
    found = {
        name: (group.get("kind"), group["lr"], group["weight_decay"])
        for group in groups
        for name in group["param_names"]
    }
    expected = {
        "inner.weight": (None, 0.3, 0.1),
        "gain": (None, 0.3, 0.0),
        "table.weight": ("embeddings", 1.0, 0.1),
        "classes.weight": ("head", 2.0, 0.5),
        "classes.bias": ("head", 2.0, 0.5),
        "batch_norm.weight": ("norms", 3.0, 0.0),
        "batch_norm.bias": ("norms", 3.0, 0.0),
        "kernel.bias": ("biases", 4.0, 0.0),
        "inner.bias": ("biases", 4.0, 0.0),
        "kernel.weight": ("convolutions", 5.0, 0.1),
    }
    if tied:
        del expected["classes.weight"]
    assert found == expected
    LPSGDM(groups, total_steps=3)
    with pytest.raises(TypeError, match="head must be None or a dict of settings such as lr, got"):
        param_groups(Mixed(tied), head=0.1)


@needs_torch(2, 6, "torch.optim takes named parameters from there")
def test_named_parameters_are_accepted() -> None:
    model = nn.Linear(2, 2)
    optimizer = LPSGDM(model.named_parameters(), p=CosineP(6, total_steps=5))
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert "param_names" not in repr(optimizer)


def test_a_schedule_set_by_hand_as_p_is_taken_over() -> None:
    params, schedule = start(), CosineP(6, total_steps=5)
    optimizer = LPSGDM(params, p=3.0)
    run(optimizer, params, gradients(2))
    group = optimizer.param_groups[0]
    group["p"] = schedule
    run(optimizer, params, gradients(1))
    assert group["p_schedule"] is schedule
    assert group["p"] == schedule(2)
    group["p_schedule"] = 6
    before = arrays(params)
    with pytest.raises(ValueError, match="p_schedule must be None or callable, got 6"):
        run(optimizer, params, gradients(1))
    assert largest_error(params, before) == 0


def test_a_state_dtype_in_which_nothing_can_be_computed() -> None:
    with pytest.raises(ValueError, match="state_dtype must be .* of at least 16 bits, got .*8_e4"):
        LPSGDM(start(), state_dtype=torch.float8_e4m3fn)


@pytest.mark.parametrize("foreach", [None, False, True])
def test_a_parameter_that_is_a_lazy_conjugate_is_not_left_unmoved(foreach: bool | None) -> None:
    parameter = torch.tensor([1 + 1j]).conj().requires_grad_()
    parameter.grad = torch.tensor([1 + 2j])
    with pytest.raises(RuntimeError, match="resolve_conj"):  # torch's own words
        LPSGD([parameter], foreach=foreach).step()


def test_a_failed_step_of_a_pscheduler_changes_nothing() -> None:
    groups = [{"params": start()[:1]}, {"params": start()[1:]}]
    optimizer = LPSGDM(groups)
    scheduler = PScheduler(optimizer, [ConstantP(4), lambda count: 3.0 if count < 1 else None])
    with pytest.raises(ValueError, match="lambda.* gave p=None at step 1; p must be a number"):
        scheduler.step()
    assert (scheduler.last_epoch, scheduler.get_last_p()) == (0, [4.0, 3.0])
    assert [group["p"] for group in optimizer.param_groups] == [4.0, 3.0]
    with pytest.raises(ValueError, match="schedule must be a callable count -> p, got 'cosine'"):
        PScheduler(LPSGDM(start()), "cosine")  # type: ignore[arg-type]
