"""What the optimizers become at their limits: the identities that connect them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytorch_optimizer
import torch

from lpsgd import LPSGD, LPSGDM, CosineP, LinearAlpha
from lpsgd.peers import GSGD, Lion, LionK, PowerSGDM, PowerStep, SignSGD, Signum, Stacey
from lpsgd.transform import LpGradient
from tests.oracles.peers import Quadratic
from tests.peers.quadratic_walks import largest_difference, parameters, walk

STEPS = 60
INF = float("inf")
DECAY = {"lr": 0.02, "weight_decay": 0.1}
COSINE = CosineP(6, total_steps=STEPS)

Make = Callable[[Any], torch.optim.Optimizer]

SAME: dict[str, tuple[Make, Make]] = {
    "LPSGD at p = 2 is plain SGD": (
        lambda params: LPSGD(params, p=2.0, **DECAY),
        lambda params: torch.optim.SGD(params, **DECAY),  # without momentum its decay is decoupled
    ),
    "LPSGDM without momentum is LPSGD": (
        lambda params: LPSGDM(params, momentum=0.0, p=COSINE, **DECAY),
        lambda params: LPSGD(params, p=COSINE, **DECAY),
    ),
    "Lion is Lion-K at p = inf": (
        lambda params: Lion(params, betas=(0.8, 0.95), **DECAY),
        lambda params: LionK(params, betas=(0.8, 0.95), p=INF, **DECAY),
    ),
    "Lion with equal betas is Signum": (
        lambda params: Lion(params, betas=(0.9, 0.9), **DECAY),
        lambda params: Signum(params, momentum=0.9, **DECAY),
    ),
    "Signum without momentum is SignSGD": (
        lambda params: Signum(params, momentum=0.0, **DECAY),
        lambda params: SignSGD(params, **DECAY),
    ),
    "SignSGD is LPSGD at p = inf as eps -> 0": (
        lambda params: SignSGD(params, **DECAY),
        lambda params: LPSGD(params, p=INF, eps=1e-15, **DECAY),
    ),
    "Signum is LPSGDM at p = inf as eps -> 0": (
        lambda params: Signum(params, momentum=0.7, **DECAY),
        lambda params: LPSGDM(params, momentum=0.7, p=INF, eps=1e-15, **DECAY),
    ),
    "PowerStep is LPSGDM as eps -> 0 at a rate of (1 - beta)^-power": (
        lambda params: PowerStep(params, lr=0.02, momentum=0.7, power=0.2),
        lambda params: LPSGDM(params, lr=0.02 * 0.3**-0.2, momentum=0.7, p=6.0, eps=1e-15),
    ),
    "Stacey with tau = 0 and equal betas is LPSGDM": (
        lambda params: Stacey(params, betas=(0.7, 0.7), tau=0.0, p=COSINE, eps=1e-4, **DECAY),
        lambda params: LPSGDM(params, momentum=0.7, p=COSINE, eps=1e-4, **DECAY),
    ),
    "Stacey's modes are one at p = 2": (
        lambda params: Stacey(params, p=2.0, tau=0.2, dual_lr=0.1, mode="p2", **DECAY),
        lambda params: Stacey(params, p=2.0, tau=0.2, dual_lr=0.1, mode="pp", **DECAY),
    ),
    "GSGD is LPSGD under LinearAlpha": (
        lambda params: GSGD(params, total_steps=STEPS, **DECAY),
        lambda params: LPSGD(params, p=LinearAlpha(total_steps=STEPS), **DECAY),
    ),
    "PowerSGDM with gamma = 1 is torch's SGD": (
        lambda params: PowerSGDM(params, gamma=1.0, momentum=0.8, **DECAY),
        lambda params: torch.optim.SGD(params, momentum=0.8, **DECAY),
    ),
    "PowerSGDM with gamma = 1 and no momentum is plain SGD": (
        lambda params: PowerSGDM(params, gamma=1.0, momentum=0.0, **DECAY),
        lambda params: torch.optim.SGD(params, **DECAY),
    ),
    "PowerSGDM with gamma = 0, no momentum, no decay is SignSGD": (
        lambda params: PowerSGDM(params, lr=0.02, gamma=0.0, momentum=0.0),
        lambda params: SignSGD(params, lr=0.02),
    ),
    "PowerSGDM without momentum and decay is LPSGD as eps -> 0": (
        lambda params: PowerSGDM(params, lr=0.02, gamma=0.2, momentum=0.0),
        lambda params: LPSGD(params, lr=0.02, p=6.0, eps=1e-15),
    ),
    "PowerSGDM without decay is SGD with momentum on l_p gradients": (
        lambda params: PowerSGDM(params, lr=0.02, gamma=0.2, momentum=0.9),
        lambda params: LpGradient(torch.optim.SGD(params, lr=0.02, momentum=0.9), p=6.0, eps=1e-15),
    ),
    "SGD on l_p gradients is LPSGD": (
        lambda params: LpGradient(torch.optim.SGD(params, lr=0.02), p=COSINE, eps=1e-3),
        lambda params: LPSGD(params, lr=0.02, p=COSINE, eps=1e-3),
    ),
    "Lion is pytorch_optimizer's": (
        lambda params: Lion(params, betas=(0.8, 0.95), **DECAY),
        lambda params: pytorch_optimizer.Lion(params, betas=(0.8, 0.95), **DECAY),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_two_optimizers_walk_alike(name: str) -> None:
    problem = Quadratic()
    walks = []
    for make in SAME[name]:
        params = parameters(problem)
        walks.append(walk(make(params), params, problem, STEPS))
    assert largest_difference(*walks) < 1e-10


@pytest.mark.parametrize("foreach", [False, True])
def test_lion_is_pytorch_optimizers_to_the_last_bit(foreach: bool) -> None:
    problem = Quadratic()
    settings = {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1, "foreach": foreach}
    walks = []
    for kind in (Lion, pytorch_optimizer.Lion):
        params = parameters(problem, torch.float32)
        walks.append(walk(kind(params, **settings), params, problem, STEPS))
    assert largest_difference(*walks) == 0


def test_loop_and_foreach_are_the_same_arithmetic() -> None:
    problem = Quadratic()
    for make in (
        lambda params, foreach: LionK(params, lr=0.02, p=3.0, foreach=foreach),
        lambda params, foreach: Stacey(params, lr=0.02, mode="pp", tau=0.1, foreach=foreach),
    ):
        walks = []
        for foreach in (False, True):
            params = parameters(problem, torch.float32)
            walks.append(walk(make(params, foreach), params, problem, STEPS))
        assert largest_difference(*walks) == 0


def test_lion_k_steps_have_unit_norm_for_any_scale_of_the_gradient() -> None:
    for scale in (1e-30, 1.0, 1e30):
        param = torch.zeros(50, requires_grad=True)
        param.grad = scale * torch.linspace(-1, 1, 50)
        LionK([param], lr=1.0, p=3.0).step()
        assert torch.allclose(param.detach().norm(3), torch.ones(()))


@pytest.mark.parametrize("capturable", [False, True])  # p as a number and as a tensor
@pytest.mark.parametrize("p", [2.0, 6.0, INF])
def test_lion_k_does_not_move_where_the_gradient_is_zero(p: float, capturable: bool) -> None:
    for gradient in ([0.0, 0.0, 0.0], [0.0, 3.0, -4.0]):
        param = torch.ones(3, requires_grad=True)
        param.grad = torch.tensor(gradient)
        LionK([param], lr=1.0, p=p, capturable=capturable).step()
        assert (param.detach() == 1).tolist() == [g == 0 for g in gradient]
        assert param.isfinite().all()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_a_power_of_zero_is_zero(gamma: float) -> None:
    param = torch.ones(2, requires_grad=True)
    param.grad = torch.tensor([0.0, 4.0])
    PowerSGDM([param], lr=1.0, gamma=gamma).step()
    assert torch.allclose(param.detach(), torch.tensor([1.0, 1 - 4.0**gamma]))
