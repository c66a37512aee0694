"""What every peer offers as the library's own optimizers do: groups, state, errors, autograd."""

from __future__ import annotations

import copy
import io
import math
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch

from lpsgd import CosineP, LinearAlpha, PScheduler
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
from tests.torch_versions import needs_compiled_step

SETTINGS: dict[type, dict[str, Any]] = {
    SignSGD: {"lr": 0.02, "weight_decay": 0.1},
    Signum: {"lr": 0.02, "weight_decay": 0.1},
    Lion: {"lr": 0.02, "weight_decay": 0.1},
    LionK: {"lr": 0.02, "weight_decay": 0.1, "p": CosineP(6, total_steps=40)},
    GSGD: {"lr": 0.02, "weight_decay": 0.1, "total_steps": 40},
    Stacey: {"lr": 0.02, "weight_decay": 0.1, "tau": 0.1, "mode": "pp", "dual_lr": 0.05},
    PowerSGDM: {"lr": 0.02, "weight_decay": 0.1},
    PowerStep: {"lr": 0.02, "weight_decay": 0.1},
    CautiousAdamW: {"lr": 0.02, "weight_decay": 0.1},
}
STATE = {
    SignSGD: set(),
    Signum: {"momentum_buffer"},
    Lion: {"momentum_buffer"},
    LionK: {"momentum_buffer"},
    GSGD: set(),
    Stacey: {"momentum_buffer", "z"},
    PowerSGDM: {"momentum_buffer"},
    PowerStep: {"momentum_buffer"},
    CautiousAdamW: {"momentum_buffer", "second_moment"},
}
kinds = pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)


@kinds
def test_the_state_is_what_it_says(kind: type) -> None:
    problem = oracles.Quadratic()
    params = parameters(problem)
    optimizer = kind(params, **SETTINGS[kind])
    walk(optimizer, params, problem, 3)
    for param in params:
        assert set(optimizer.state[param]) == STATE[kind] | {"step"}
        assert int(optimizer.state[param]["step"]) == 3


@kinds
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_run_goes_on_from_a_file_to_the_last_bit(kind: type, dtype: torch.dtype) -> None:
    problem = oracles.Quadratic()
    straight = parameters(problem, dtype)
    expected = walk(kind(straight, **SETTINGS[kind]), straight, problem, 20)

    params = parameters(problem, dtype)
    first = kind(params, **SETTINGS[kind])
    walk(first, params, problem, 10)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = kind(params, **SETTINGS[kind])
    second.load_state_dict(torch.load(file, weights_only=True))
    rest = walk(second, params, problem, 10, first=11)
    assert largest_difference(rest, [points[10:] for points in expected]) == 0
    for name in STATE[kind]:
        wide = torch.float32 if dtype == torch.bfloat16 else dtype
        assert all(second.state[param][name].dtype == wide for param in params)


@kinds
def test_a_copy_does_not_share_state(kind: type) -> None:
    problem = oracles.Quadratic()
    params = parameters(problem)
    optimizer = kind(params, **SETTINGS[kind])
    walk(optimizer, params, problem, 2)
    twin = copy.deepcopy(optimizer)
    before = [p.detach().clone() for p in twin.param_groups[0]["params"]]
    walk(optimizer, params, problem, 2)
    assert all(
        torch.equal(a, b) for a, b in zip(before, twin.param_groups[0]["params"], strict=True)
    )
    assert int(twin.state[twin.param_groups[0]["params"][0]]["step"]) == 2


@kinds
def test_groups_have_their_own_settings(kind: type) -> None:
    problem = oracles.Quadratic()
    settings = SETTINGS[kind]
    alone = []
    for index, lr in ((0, 0.02), (1, 0.005)):
        param = parameters(problem)[index]
        optimizer = kind([param], **{**settings, "lr": lr})
        for t in range(1, 21):
            param.grad = torch.as_tensor(problem.gradient(index)(param.detach().numpy(), t))
            optimizer.step()
        alone.append(param.detach())
    params = parameters(problem)[:2]
    optimizer = kind([{"params": params[0]}, {"params": params[1], "lr": 0.005}], **settings)
    walk(optimizer, params, problem, 20)
    for mine, expected in zip(params, alone, strict=True):
        assert torch.allclose(mine.detach(), expected, rtol=0, atol=1e-13)


@kinds
@pytest.mark.parametrize("foreach", [False, True])
def test_absent_and_empty_gradients(kind: type, foreach: bool) -> None:
    still = torch.ones(3, requires_grad=True)
    empty = torch.ones(0, requires_grad=True)
    moved = torch.ones(3, requires_grad=True)
    optimizer = kind([still, empty, moved], **SETTINGS[kind], foreach=foreach)
    optimizer.step()
    empty.grad, moved.grad = torch.ones(0), torch.ones(3)
    optimizer.step()
    assert torch.equal(still.detach(), torch.ones(3))
    assert not torch.equal(moved.detach(), torch.ones(3))
    assert still not in optimizer.state


@kinds
def test_the_gradient_is_not_changed(kind: type) -> None:
    for foreach, maximize in ((False, False), (True, False), (False, True), (True, True)):
        param = torch.ones(5, requires_grad=True)
        param.grad = torch.linspace(-1, 1, 5)
        settings = {**SETTINGS[kind], "foreach": foreach, "maximize": maximize}
        kind([param], **settings).step()
        assert torch.equal(param.grad, torch.linspace(-1, 1, 5))


@kinds
def test_sparse_gradients_are_refused(kind: type) -> None:
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=f"{kind.__name__} does not take sparse gradients"):
        kind(table.parameters(), **SETTINGS[kind]).step()


@kinds
def test_a_closure_is_evaluated_with_gradients(kind: type) -> None:
    param = torch.ones(3, requires_grad=True)
    optimizer = kind([param], **SETTINGS[kind])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert not torch.equal(param.detach(), torch.ones(3))


@kinds
def test_autograd_sees_three_steps(kind: type) -> None:
    """d(end)/d(lr, start) against finite differences, with create_graph through the gradient."""
    # GSGD starts with x/(|x|+eps), whose derivative differences cannot find for a tiny eps
    settings = {**SETTINGS[kind], **({"eps": 1e-2} if kind is GSGD else {})}

    def end(lr: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        param = start.clone()
        optimizer = kind([param], **{**settings, "lr": lr}, differentiable=True)
        for _ in range(3):
            param.grad = (param * torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)) ** 3
            optimizer.step()
        return param

    lr = torch.tensor(0.01, dtype=torch.float64, requires_grad=True)
    start = torch.tensor([1.0, -2.0, 1.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(end, (lr, start), atol=1e-6)


@needs_compiled_step
@kinds
def test_a_compiled_step_is_the_eager_one(kind: type) -> None:
    torch._dynamo.reset()
    problem = oracles.Quadratic()
    walks = []
    for compiled in (False, True):
        params = parameters(problem)
        lr = torch.tensor(SETTINGS[kind]["lr"], dtype=torch.float64)
        optimizer = kind(params, **{**SETTINGS[kind], "lr": lr})
        if compiled:
            optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]
        walks.append(walk(optimizer, params, problem, 5))
    assert largest_difference(*walks) < 1e-12


WRONG = [
    (SignSGD, {"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
    (SignSGD, {"weight_decay": math.nan}, "weight_decay must be a finite number >= 0, got nan"),
    (SignSGD, {"foreach": "yes"}, "foreach must be True, False or None, got 'yes'"),
    (Signum, {"momentum": 1.0}, r"momentum must be a number in \[0, 1\), got 1.0"),
    (Lion, {"betas": (0.9, 1.0)}, r"betas must be a pair of numbers in \[0, 1\), got \(0.9, 1.0\)"),
    (Lion, {"betas": 0.9}, r"betas must be a pair of numbers in \[0, 1\), got 0.9"),
    (Lion, {"betas": (0.9, 0.9, 0.9)}, "betas must be a pair"),
    (Lion, {"state_dtype": torch.int8}, "state_dtype must be None or a floating-point torch.dtype"),
    (LionK, {"p": 1.5}, "p must be a number from 2 to inf, got 1.5"),
    (Stacey, {"tau": 1.5}, r"tau must be a number in \[0, 1\], got 1.5"),
    (Stacey, {"mode": "2p"}, "mode must be one of 'p2', 'pp', got '2p'"),
    (Stacey, {"dual_lr": -1}, "dual_lr must be a finite number >= 0, got -1"),
    (Stacey, {"eps": 0.0}, "eps must be a finite number > 0, got 0.0"),
    (PowerSGDM, {"gamma": -0.1}, r"gamma must be a number in \[0, 1\], got -0.1"),
    (PowerStep, {"power": 1.1}, r"power must be a number in \[0, 1\], got 1.1"),
    (CautiousAdamW, {"eps": 0.0}, "eps must be a finite number > 0, got 0.0"),
    (GSGD, {"total_steps": 0}, "total_steps must be a whole number >= 1, got 0"),
    (Lion, {"foreach": True, "differentiable": True}, "exclude each other"),
]


@pytest.mark.parametrize(("kind", "settings", "text"), WRONG)
def test_errors_name_argument_value_and_what_is_allowed(
    kind: type, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        kind([torch.ones(2, requires_grad=True)], **settings)
    if kind is not GSGD:  # the same in a group
        group = {"params": [torch.ones(2, requires_grad=True)], **settings}
        with pytest.raises(ValueError, match=text):
            kind([group])


def test_stacey_in_pp_mode_bears_a_large_p_in_float32() -> None:
    """z^(p-1) is beyond float32 on both sides; the oracle has 400 digits."""
    start, grad, a, p = [20.0, -1e-3, 1e-3, 0.0, 2.0], [1.0, 0.0, -1e-30, 0.0, 0.5], 0.1, 40.0
    theta = torch.tensor(start, requires_grad=True)
    optimizer = Stacey([theta], lr=1e-3, p=p, mode="pp", dual_lr=a, betas=(0.0, 0.0))
    theta.grad = torch.tensor(grad)
    optimizer.step()

    def mirror(z: float, g: float) -> float:
        with localcontext(prec=400):
            image = Decimal(z) ** 39 - Decimal(a) * Decimal(g)
            root = abs(image) ** (1 / Decimal(39)) if image else Decimal(0)
        return math.copysign(float(root), image)

    expected = [mirror(*pair) for pair in zip(start, grad, strict=True)]
    torch.testing.assert_close(
        optimizer.state[theta]["z"], torch.tensor(expected), rtol=2e-5, atol=0
    )


def test_stacey_in_pp_mode_has_no_infinite_p() -> None:
    def param() -> torch.Tensor:
        leaf = torch.ones(2, requires_grad=True)
        leaf.grad = torch.ones(2)
        return leaf

    text = "p=inf with mode='pp'.*allowed is a p from 2 to below inf"
    for p in (math.inf, torch.tensor(math.inf), LinearAlpha(total_steps=4)):
        with pytest.raises(ValueError, match=text):
            Stacey([param()], p=p, mode="pp")
        Stacey([param()], p=p, mode="p2").step()

    optimizer = Stacey([param()], p=4.0, mode="pp")
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": param(), "p": math.inf})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0]["p"] = math.inf
    with pytest.raises(ValueError, match=text):
        optimizer.step()
    assert torch.equal(optimizer.param_groups[0]["params"][0].detach(), torch.ones(2))


def test_state_dtype_is_kept_and_used() -> None:
    param = torch.ones(4, requires_grad=True)
    optimizer = Stacey([param], state_dtype=torch.bfloat16, tau=0.1)
    param.grad = torch.linspace(0, 1, 4)
    optimizer.step()
    assert optimizer.state[param]["momentum_buffer"].dtype == torch.bfloat16
    assert optimizer.state[param]["momentum_buffer"].abs().sum() > 0
    assert optimizer.state[param]["z"].dtype == torch.float32


def test_no_buffer_without_momentum() -> None:
    for kind in (Signum, PowerSGDM, PowerStep):
        param = torch.ones(4, requires_grad=True)
        param.grad = torch.ones(4)
        optimizer = kind([param], momentum=0.0)
        optimizer.step()
        assert set(optimizer.state[param]) == {"step"}


def test_schedulers_set_rate_and_exponent() -> None:
    param = torch.ones(4, requires_grad=True)
    optimizer = Stacey([param], lr=1.0, p=6.0)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    exponents = PScheduler(optimizer, CosineP(6, total_steps=3))
    param.grad = torch.ones(4)
    optimizer.step()
    rates.step()
    exponents.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["p"] == 4.0


def test_the_names_are_loaded_lazily() -> None:
    import lpsgd.peers

    assert set(lpsgd.peers.__all__) <= set(dir(lpsgd.peers))
    with pytest.raises(AttributeError, match="has no attribute 'Liom'"):
        _ = lpsgd.peers.Liom
