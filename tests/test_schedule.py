"""Schedules as pure functions of the step, and PScheduler beside torch's LR schedulers."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpsgd import LPSGD, LPSGDM, ConstantP, CosineP, LinearAlpha, LinearP, PScheduler
from tests.oracles import lp

SCHEDULES = [
    CosineP(6, total_epochs=7, steps_per_epoch=5),
    CosineP(9.5, total_steps=30, p_min=3),
    CosineP(6, total_steps=1),
    LinearP(6, total_steps=30),
    LinearP(6, total_epochs=1, steps_per_epoch=4),
    ConstantP(4),
    ConstantP(math.inf),
    LinearAlpha(total_steps=30),
    LinearAlpha(total_epochs=6, steps_per_epoch=5),
]


@given(st.floats(2, 100), st.integers(1, 50), st.integers(1, 20), st.integers(0, 2000))
def test_cosine_is_the_papers(p_max: float, epochs: int, steps: int, step: int) -> None:
    schedule = CosineP(p_max, total_epochs=epochs, steps_per_epoch=steps)
    epoch = min(step // steps + 1, epochs)
    assert schedule(step) == pytest.approx(lp.paper_p(p_max, epoch, epochs), rel=1e-14)
    smooth = CosineP(p_max, total_steps=epochs)
    assert smooth(step) == pytest.approx(
        lp.paper_p(p_max, min(step + 1, epochs), epochs), rel=1e-14
    )


@given(st.floats(2, 100), st.integers(2, 400), st.integers(1, 400))
def test_ends_are_exact(p_max: float, epochs: int, steps: int) -> None:
    for make in (CosineP, LinearP):
        schedule = make(p_max, total_epochs=epochs, steps_per_epoch=steps)
        assert schedule(0) == schedule(steps - 1) == p_max
        last = epochs * steps - 1
        assert schedule(last) == schedule(last - steps + 1) == schedule(10 * last) == 2.0
        assert schedule(torch.tensor(last)).item() == 2.0
        assert make(p_max, total_epochs=1, steps_per_epoch=steps)(last) == p_max
        assert make(p_max, total_steps=epochs, p_min=2.0)(epochs - 1) == 2.0


def test_linear_alpha() -> None:
    schedule = LinearAlpha(total_steps=10)
    for step in range(15):
        alpha = min(step / 10, 1)
        assert 1 / (schedule(step) - 1) == pytest.approx(alpha)
    assert schedule(0) == math.inf
    assert schedule(10) == schedule(1000) == 2.0


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_tensors_give_the_same_without_branching(schedule: Any) -> None:
    for step in range(45):
        for dtype in (torch.int64, torch.float32):
            value = schedule(torch.tensor(step, dtype=dtype))
            assert value.dtype == torch.float64
            assert value.shape == ()
            assert value.item() == pytest.approx(schedule(step), rel=1e-14)
    # a value that only exists later cannot be branched on
    assert schedule(torch.zeros((), device="meta")).device.type == "meta"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_are_plain_values(schedule: Any) -> None:
    assert copy.deepcopy(schedule) == pickle.loads(pickle.dumps(schedule)) == schedule
    description = schedule.describe()
    assert type(schedule)(**{k: v for k, v in description.items() if k != "name"}) == schedule
    assert eval(repr(schedule), {**globals(), "inf": math.inf}) == schedule


def test_repr_reads_like_the_call() -> None:
    assert repr(CosineP(6, total_steps=100)) == "CosineP(p_max=6.0, total_steps=100, p_min=2.0)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: CosineP(math.inf, total_steps=5),
            "CosineP: p_max=inf cannot be annealed.*LinearAlpha",
        ),
        (
            lambda: LinearP(math.inf, total_steps=5),
            "LinearP: p_max=inf cannot be annealed.*LinearAlpha",
        ),
        (lambda: CosineP(1.5, total_steps=5), "p_max must be a number from 2 to inf, got 1.5"),
        (lambda: CosineP(math.nan, total_steps=5), "p_max must be a number from 2 to inf, got nan"),
        (lambda: CosineP("6", total_steps=5), "p_max must be a number from 2 to inf, got '6'"),
        (
            lambda: CosineP(6, total_steps=5, p_min=1.0),
            "p_min must be a number from 2 to inf, got 1.0",
        ),
        (
            lambda: CosineP(3, total_steps=5, p_min=4.0),
            "p_max must be a number >= p_min=4.0, got 3",
        ),
        (lambda: CosineP(6), "CosineP needs either total_steps or total_epochs"),
        (
            lambda: LinearAlpha(total_steps=3, total_epochs=3),
            "LinearAlpha needs either total_steps or",
        ),
        (lambda: CosineP(6, total_epochs=3), "total_epochs and steps_per_epoch go together"),
        (
            lambda: CosineP(6, total_steps=3, steps_per_epoch=2),
            "total_epochs and steps_per_epoch go together",
        ),
        (lambda: CosineP(6, total_steps=0), "total_steps must be a whole number >= 1, got 0"),
        (lambda: CosineP(6, total_steps=2.5), "total_steps must be a whole number >= 1, got 2.5"),
        (
            lambda: CosineP(6, total_epochs=2, steps_per_epoch=True),
            "steps_per_epoch must be a whole number",
        ),
        (lambda: ConstantP(1), "p must be a number from 2 to inf, got 1"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def parameter() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


LR_SCHEDULERS: list[Any] = [
    lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10),
    lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, max_lr=0.1, total_steps=12, cycle_momentum=False
    ),
    lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(o, 7),
        ],
        milestones=[3],
    ),
]


@pytest.mark.parametrize("make_lr", LR_SCHEDULERS)
@pytest.mark.parametrize("first", ["p", "lr"])
def test_p_scheduler_composes_with_lr_schedulers(make_lr: Any, first: str) -> None:
    alone = LPSGDM([parameter()], lr=0.1)
    lr_alone = make_lr(alone)
    optimizer = LPSGDM([parameter()], lr=0.1)
    schedule = CosineP(6, total_steps=10)
    if first == "p":
        schedulers = [PScheduler(optimizer, schedule), make_lr(optimizer)]
    else:
        schedulers = [make_lr(optimizer), PScheduler(optimizer, schedule)]
    for epoch in range(10):
        group = optimizer.param_groups[0]
        assert group["p"] == schedule(epoch)
        assert group["lr"] == alone.param_groups[0]["lr"]
        for o in (alone, optimizer):
            o.param_groups[0]["params"][0].grad = torch.ones(3)
            o.step()
        lr_alone.step()
        for scheduler in schedulers if epoch % 2 else reversed(schedulers):
            scheduler.step()


def test_p_scheduler_resumes() -> None:
    schedule = CosineP(6, total_steps=10)
    optimizer = LPSGDM([parameter()])
    scheduler = PScheduler(optimizer, schedule)
    for _ in range(4):
        scheduler.step()
    assert scheduler.last_epoch == 4
    other = PScheduler(LPSGDM([parameter()]), schedule)
    other.load_state_dict(scheduler.state_dict())
    other.optimizer.load_state_dict(optimizer.state_dict())
    assert other.optimizer.param_groups[0]["p"] == schedule(4)
    assert other.get_last_p() == [schedule(4)]
    other.step()
    assert other.optimizer.param_groups[0]["p"] == schedule(5)
    assert PScheduler(LPSGDM([parameter()]), schedule, last_epoch=4).get_last_p() == [schedule(5)]


@pytest.mark.parametrize("capturable", [False, True])
def test_p_scheduler_resumes_after_the_optimizer(capturable: bool) -> None:
    """Made after the optimizer was loaded, it first sets p anew, which its own file must undo."""
    schedules = [CosineP(6, total_steps=10), LinearP(5, total_steps=7)]

    def make() -> LPSGDM:
        groups = [{"params": [parameter()]}, {"params": [parameter()]}]
        return LPSGDM(groups, capturable=capturable)

    optimizer = make()
    scheduler = PScheduler(optimizer, schedules)
    for _ in range(4):
        scheduler.step()
    other = make()
    other.load_state_dict(optimizer.state_dict())
    resumed = PScheduler(other, schedules)
    resumed.load_state_dict(scheduler.state_dict())
    assert [float(group["p"]) for group in other.param_groups] == [p(4) for p in schedules]
    resumed.step()
    assert [float(group["p"]) for group in other.param_groups] == [p(5) for p in schedules]


def test_p_scheduler_serves_groups_and_tensors() -> None:
    groups = [{"params": [parameter()]}, {"params": [parameter()]}]
    optimizer = LPSGDM(groups, capturable=True)
    held = [group["p"] for group in optimizer.param_groups]
    scheduler = PScheduler(optimizer, [ConstantP(5), CosineP(6, total_steps=3)])
    scheduler.step()
    assert [p.item() for p in held] == [5.0, 4.0]  # the same tensors, changed in place
    optimizer.add_param_group({"params": [parameter()]})
    scheduler.step()
    assert [float(g["p"]) for g in optimizer.param_groups] == [5.0, 2.0, 2.0]


def test_p_scheduler_refuses_what_it_cannot_do() -> None:
    scheduled = LPSGDM([parameter()], p=CosineP(6, total_steps=3))
    with pytest.raises(
        ValueError, match="group 0 has its own p schedule CosineP.*one or the other"
    ):
        PScheduler(scheduled, ConstantP(4))
    with pytest.raises(ValueError, match="group 0 of SGD has no p to set"):
        PScheduler(torch.optim.SGD([parameter()]), ConstantP(4))
    with pytest.raises(ValueError, match="a list of 2 for 1 parameter groups"):
        PScheduler(LPSGDM([parameter()]), [ConstantP(4), ConstantP(4)])
    with pytest.raises(ValueError, match="schedule must be a callable count -> p, got 6.0"):
        PScheduler(LPSGDM([parameter()]), 6.0)
    with pytest.raises(ValueError, match="gave p=1.0 at step 0; p must be a number from 2"):
        PScheduler(LPSGDM([parameter()]), lambda count: 1.0)


def test_a_step_far_past_the_end_warns_once() -> None:
    x = parameter()
    optimizer = LPSGDM([x], p=CosineP(6, total_steps=20))
    with pytest.warns(
        UserWarning, match=r"step 22 is more than 5 % past the end of CosineP"
    ) as seen:
        for _ in itertools.repeat(None, 40):
            x.grad = torch.ones(3)
            optimizer.step()
    assert len(seen) == 1
    assert seen[0].filename == __file__  # points at the user's line


def test_the_warning_finds_the_user_behind_an_lr_scheduler() -> None:
    x = parameter()
    optimizer = LPSGDM([x], p=CosineP(6, total_steps=1))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    with pytest.warns(UserWarning, match="past the end") as seen:
        for _ in range(3):
            x.grad = torch.ones(3)
            optimizer.step()
            scheduler.step()
    assert seen[0].filename == __file__


@pytest.mark.parametrize("cls", [LPSGD, LPSGDM])
def test_total_steps_is_short_for_the_cosine(cls: Any) -> None:
    short, long = (
        cls([parameter()], lr=0.1, total_steps=7),
        cls([parameter()], lr=0.1, p=CosineP(6, total_steps=7)),
    )
    assert repr(short) == repr(long)
    assert short.state_dict()["param_groups"] == long.state_dict()["param_groups"]
    assert cls([parameter()], p=4, total_steps=7).param_groups[0]["p_schedule"] == CosineP(
        4, total_steps=7
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p": CosineP(6, total_steps=9)}, "total_steps=7 makes a schedule .* p is CosineP"),
        ({"p": torch.tensor(6.0)}, "total_steps=7 makes a schedule that starts at the number p"),
        ({"p": 1.5}, "p must be a number from 2 to inf, got 1.5"),
        ({"total_steps": 0}, "total_steps must be a whole number >= 1, got 0"),
    ],
)
def test_total_steps_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LPSGDM([parameter()], **{"total_steps": 7, **settings})


def steps_with(**settings: Any) -> LPSGDM:
    weights = parameter()
    optimizer = LPSGDM([weights], **settings)
    for _ in range(2):
        weights.grad = torch.ones(3)
        optimizer.step()
    return optimizer


def test_a_p_that_was_not_given_and_stays_is_warned_of_once() -> None:
    with pytest.warns(UserWarning, match="LPSGDM was given neither p nor total_steps") as seen:
        steps_with(lr=0.1)
    assert len(seen) == 1
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    "settings", [{"p": 6.0}, {"total_steps": 5}, {"p": CosineP(6, total_steps=5)}]
)
def test_a_p_that_was_given_is_not_warned_of(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps_with(lr=0.1, **settings)


def test_neither_is_one_that_a_p_scheduler_moves_nor_one_of_a_group() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = parameter()
        weights.grad = torch.ones(3)
        optimizer = LPSGDM([weights], lr=0.1)
        PScheduler(optimizer, CosineP(6, total_steps=5))
        optimizer.step()
        LPSGDM([{"params": [weights], "p": 6.0}], lr=0.1).step()
