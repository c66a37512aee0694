"""Each peer follows its float64 formula for 60 steps, on every path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from lpsgd import CosineP
from lpsgd.peers import (
    GSGD,
    CautiousAdamW,
    Lion,
    LionK,
    PowerSGDM,
    PowerStep,
    SignSGD,
    Signum,
    Stacey,
)
from tests.oracles import peers as oracles
from tests.peers.quadratic_walks import largest_difference, parameters, walk

STEPS = 60
INF = float("inf")


@dataclass(frozen=True)
class Case:
    name: str
    optimizer: type[torch.optim.Optimizer]
    rule: oracles.Rule
    settings: dict[str, Any]
    of_oracle: dict[str, Any] | None = None  # where the oracle takes something else

    def oracle_settings(self) -> dict[str, Any]:
        return {**self.settings, **(self.of_oracle or {})}


_LION = {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1}
_STACEY = {**_LION, "p": 4.0, "tau": 0.1, "dual_lr": 0.05, "mode": "p2", "eps": 1e-3}
_COSINE = {"p": CosineP(6, total_steps=58)}
_COSINE_ORACLE = {"p": oracles.cosine_p(6, 58)}

CASES = [
    Case("sign-sgd", SignSGD, oracles.sign_sgd, {"lr": 0.02, "weight_decay": 0.1}),
    Case("signum", Signum, oracles.signum, {"lr": 0.02, "momentum": 0.7, "weight_decay": 0.1}),
    Case("lion", Lion, oracles.lion, _LION),
    Case("lion-k-6", LionK, oracles.lion_k, {**_LION, "p": 6.0}),
    Case("lion-k-2", LionK, oracles.lion_k, {**_LION, "p": 2.0}),
    Case("lion-k-inf", LionK, oracles.lion_k, {**_LION, "p": INF}),
    Case("lion-k-cosine", LionK, oracles.lion_k, {**_LION, **_COSINE}, _COSINE_ORACLE),
    Case("stacey-p2", Stacey, oracles.stacey, _STACEY),
    Case("stacey-p2-inf", Stacey, oracles.stacey, {**_STACEY, "p": INF}),
    Case("stacey-pp", Stacey, oracles.stacey, {**_STACEY, "mode": "pp"}),
    Case("stacey-cosine", Stacey, oracles.stacey, {**_STACEY, **_COSINE}, _COSINE_ORACLE),
    Case(
        "power",
        PowerSGDM,
        oracles.power_sgdm,
        {"lr": 0.01, "momentum": 0.8, "gamma": 0.4, "weight_decay": 0.1},
    ),
    Case(
        "power-step",
        PowerStep,
        oracles.power_step,
        {"lr": 0.01, "momentum": 0.8, "power": 0.2, "weight_decay": 0.1},
    ),
    Case(
        "cautious",
        CautiousAdamW,
        oracles.cautious_adamw,
        {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1},
    ),
]

PATHS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "chosen": {},
    "capturable": {"capturable": True},
    "capturable loop": {"capturable": True, "foreach": False},
    "differentiable": {"differentiable": True},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_path_follows_the_formula(case: Case, path: str) -> None:
    problem = oracles.Quadratic()
    params = parameters(problem)
    if path == "differentiable":  # a leaf that needs a gradient cannot be changed under autograd
        params = [p.detach() for p in params]
    optimizer = case.optimizer(params, **case.settings, **PATHS[path])
    expected = problem.run(case.rule, STEPS, **case.oracle_settings())
    assert largest_difference(walk(optimizer, params, problem, STEPS), expected) < 1e-12


def test_gsgd_follows_its_definition_as_eps_goes_to_zero_and_past_its_end() -> None:
    problem = oracles.Quadratic()
    settings = {"lr": 0.02, "total_steps": 57, "weight_decay": 0.1}
    expected = problem.run(oracles.gsgd, STEPS, **settings)
    differences = []
    for eps in (1e-6, 1e-9, 1e-12):
        params = parameters(problem)
        optimizer = GSGD(params, eps=eps, **settings)
        differences.append(largest_difference(walk(optimizer, params, problem, STEPS), expected))
    assert differences[0] > differences[1] > differences[2]
    assert differences[2] < 1e-9


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_tensor_learning_rate_is_read_at_each_step(case: Case) -> None:
    problem = oracles.Quadratic()
    for shape, capturable in (((), False), ((1,), False), ((), True), ((1,), True)):
        params = parameters(problem)
        lr = torch.full(shape, 99.0, dtype=torch.float64)
        settings = {**case.settings, "lr": lr, "capturable": capturable}
        optimizer = case.optimizer(params, **settings)
        lr.fill_(case.settings["lr"])
        expected = problem.run(case.rule, 20, **case.oracle_settings())
        assert largest_difference(walk(optimizer, params, problem, 20), expected) < 1e-12


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_maximize_is_descent_on_the_negative(case: Case) -> None:
    problem = oracles.Quadratic()
    params = parameters(problem)
    optimizer = case.optimizer(params, **case.settings, maximize=True)
    expected = [
        oracles.run(
            case.rule,
            start,
            lambda theta, t, i=i: -problem.gradient(i)(theta, t),
            20,
            **case.oracle_settings(),
        )
        for i, start in enumerate(problem)
    ]
    assert largest_difference(walk(optimizer, params, problem, 20), expected) < 1e-9


def _fixed_gradients(dtype: torch.dtype, complex_: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    kind = torch.complex128 if complex_ else torch.float64
    return [torch.randn(7, generator=generator, dtype=kind).to(dtype) for _ in range(STEPS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_half_precision_is_rounded_once_a_step(case: Case, dtype: torch.dtype) -> None:
    """The next point is the float64 step from this point, rounded to the parameter's dtype."""
    gradients = _fixed_gradients(dtype)
    param = torch.linspace(-2, 2, 7).to(dtype).requires_grad_()
    optimizer = case.optimizer([param], **case.settings)
    state: dict[str, Any] = {}
    for t, g in enumerate(gradients, start=1):
        before = param.detach().double().numpy()
        settings = {k: v(t) if callable(v) else v for k, v in case.oracle_settings().items()}
        expected = case.rule(before, g.double().numpy(), state, t, **settings)
        param.grad = g.clone()
        optimizer.step()
        rounded = torch.as_tensor(expected).to(dtype).double().numpy()
        # one unit in the last place: float32 in between may tip a tie to the other neighbour
        allowed = torch.finfo(dtype).eps * np.abs(rounded) + 1e-6
        assert np.all(np.abs(param.detach().double().numpy() - rounded) <= allowed)
        assert torch.equal(param.grad, g)
    buffers = [v for k, v in optimizer.state[param].items() if k != "step"]
    assert all(b.dtype == torch.float32 for b in buffers)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_complex_parameter_is_a_pair_of_reals(case: Case, foreach: bool) -> None:
    start = torch.linspace(-1, 1, 7, dtype=torch.float64).to(torch.complex128) * (1 + 2j)
    whole = start.clone().requires_grad_()
    pair = torch.view_as_real(start.clone()).contiguous().requires_grad_()
    one = case.optimizer([whole], **case.settings, foreach=foreach)
    two = case.optimizer([pair], **case.settings, foreach=foreach)
    for g in _fixed_gradients(torch.complex128, complex_=True):
        whole.grad, pair.grad = g.clone(), torch.view_as_real(g.clone())
        one.step()
        two.step()
    assert torch.equal(torch.view_as_real(whole.detach()), pair.detach())
    assert not torch.equal(whole.detach(), start)
