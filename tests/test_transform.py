"""LpGradient: any optimizer on l_p-scaled gradients."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from lpsgd import LPSGD, CosineP, LinearP, PScheduler
from lpsgd.peers import Signum
from lpsgd.transform import LpGradient
from tests.oracles import peers as oracles
from tests.peers.quadratic_walks import largest_difference, parameters, walk
from tests.torch_versions import needs_torch

STEPS = 60
INF = float("inf")


def scaled_rule(rule: oracles.Rule, p: Any, eps: float) -> oracles.Rule:
    """The oracle of a wrapped optimizer: the rule, fed with the scaled gradient."""

    def wrapped(theta, g, state, t, **settings):  # type: ignore[no-untyped-def]
        exponent = p(t) if callable(p) else p
        return rule(theta, oracles.scaled(g, exponent, eps), state, t, **settings)

    return wrapped


INSIDE: dict[str, tuple[type, oracles.Rule, dict[str, Any]]] = {
    "sgd": (
        torch.optim.SGD,
        oracles.sgd,
        {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    ),
    "adamw": (
        torch.optim.AdamW,
        oracles.adamw,
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    ),
    "rmsprop": (
        torch.optim.RMSprop,
        oracles.rmsprop,
        {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "weight_decay": 0.1, "eps": 1e-3},
    ),
}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("p", [2.0, 4.0, INF, "cosine"])
def test_the_wrapped_optimizer_follows_its_formula_on_scaled_gradients(name: str, p: Any) -> None:
    kind, rule, settings = INSIDE[name]
    theirs = oracles.cosine_p(6, 58) if p == "cosine" else p
    mine = CosineP(6, total_steps=58) if p == "cosine" else p
    problem = oracles.Quadratic()
    params = parameters(problem)
    optimizer = LpGradient(kind(params, **settings), p=mine, eps=1e-2)
    expected = problem.run(scaled_rule(rule, theirs, 1e-2), STEPS, **settings)
    assert largest_difference(walk(optimizer, params, problem, STEPS), expected) < 1e-11


@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_around_sgd_it_is_lpsgd(normalize: Any, dtype: torch.dtype) -> None:
    problem = oracles.Quadratic()
    walks = []
    for make in (
        lambda params: LPSGD(params, lr=0.02, p=4.0, normalize=normalize),
        lambda params: LpGradient(torch.optim.SGD(params, lr=0.02), p=4.0, normalize=normalize),
    ):
        params = parameters(problem, dtype)
        walks.append(walk(make(params), params, problem, STEPS if dtype.itemsize == 8 else 1))
    # in bfloat16 the wrapped optimizer gets a rounded direction
    assert largest_difference(*walks) < (1e-12 if dtype.itemsize == 8 else 2e-2)


def filled(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = []
    for shape in shapes:
        param = torch.ones(shape, dtype=dtype, requires_grad=True)
        param.grad = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        params.append(param)
    return params


class Vandal(torch.optim.SGD):
    """Does to ``.grad`` what an optimizer may do: overwrites, replaces, fails."""

    deed = "overwrite"

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad.zero_()
                    if self.deed == "remove":
                        param.grad = None
        if self.deed == "fail":
            raise RuntimeError("the step failed")
        return None


@pytest.mark.parametrize("deed", ["overwrite", "remove", "fail"])
def test_the_gradient_is_put_back_bit_for_bit(deed: str) -> None:
    params = [*filled((3, 2), (4,), (0,)), *filled((2,), dtype=torch.bfloat16)]
    params.append(torch.ones(2, requires_grad=True))  # it has no gradient
    held = [param.grad for param in params]
    copies = [None if grad is None else grad.clone() for grad in held]
    inner = Vandal(params)
    inner.deed = deed
    optimizer = LpGradient(inner, p=4.0)
    if deed == "fail":
        with pytest.raises(RuntimeError, match="the step failed"):
            optimizer.step()
        assert int(optimizer.param_groups[0]["lp_step"]) == 0
    else:
        optimizer.step()
        assert int(optimizer.param_groups[0]["lp_step"]) == 1
    for param, grad, values in zip(params, held, copies, strict=True):
        assert param.grad is grad
        assert grad is None or torch.equal(grad, values)


def rosenbrock(x: Tensor) -> Tensor:
    return (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2


def test_lbfgs_sees_scaled_gradients_at_every_evaluation() -> None:
    """Against LBFGS itself, given a closure that scales by hand."""

    def by_hand(start: Tensor) -> Tensor:
        x = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([x], lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = rosenbrock(x)
            loss.backward()
            x.grad = torch.as_tensor(oracles.scaled(x.grad.numpy(), 3.0, 1e-2))
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return x.detach()

    start = torch.tensor([-0.5, 1.0], dtype=torch.float64)
    x = start.clone().requires_grad_()
    inner = torch.optim.LBFGS([x], lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    optimizer = LpGradient(inner, p=3.0, eps=1e-2)
    evaluations = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        evaluations.append((x.grad, x.grad.clone()))
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]
    assert torch.allclose(x.detach(), by_hand(start), rtol=0, atol=1e-12)
    assert losses[0] == rosenbrock(start).item()
    assert len(evaluations) > 6
    assert x.grad is evaluations[-1][0]  # what the last closure left
    assert torch.equal(x.grad, evaluations[-1][1])
    assert int(optimizer.param_groups[0]["lp_step"]) == 3  # steps, not evaluations


def test_a_closure_that_fails_leaves_the_gradient_as_the_closure_left_it() -> None:
    (param,) = filled((3,))
    optimizer = LpGradient(torch.optim.SGD([param], lr=0.1), p=4.0)

    def closure() -> float:
        param.grad = torch.full((3,), 7.0)
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        optimizer.step(closure)
    assert torch.equal(param.grad, torch.full((3,), 7.0))
    assert torch.equal(param.detach(), torch.ones(3))


def test_gradients_that_the_optimizer_clears_before_the_closure_are_not_added_to() -> None:
    """SAM takes a step up, clears the gradient, and asks for another one."""

    class UpAndDown(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                ups = [p.grad.clone() for p in self.param_groups[0]["params"]]
                for p, up in zip(self.param_groups[0]["params"], ups, strict=True):
                    p.add_(up)
            self.zero_grad()
            loss = closure()
            with torch.no_grad():
                for p, up in zip(self.param_groups[0]["params"], ups, strict=True):
                    p.sub_(up).sub_(p.grad, alpha=0.1)
            return loss

    param = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    optimizer = LpGradient(UpAndDown([param]), p=INF, eps=1e-12)
    param.square().sum().backward()

    def closure() -> Tensor:  # it relies on SAM's having cleared the gradient
        loss = param.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    # up by sign(4, -2) to (3, -2), where the gradient is (6, -4)
    assert np.allclose(param.grad.tolist(), [6, -4])
    assert np.allclose(param.tolist(), [2 - 0.1, -1 + 0.1])


def test_groups_and_schedulers_are_shared() -> None:
    params = filled((3,), (2,))
    inner = torch.optim.SGD([{"params": [params[0]]}, {"params": [params[1]], "lr": 0.5}], lr=1.0)
    optimizer = LpGradient(inner, p=CosineP(6, total_steps=3))
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    seen = []
    for _ in range(3):
        seen.append([(group["lr"], group["p"]) for group in inner.param_groups])
        optimizer.step()
        scheduler.step()
    assert np.allclose(seen, [[(1, 6), (0.5, 6)], [(0.1, 6), (0.05, 6)], [(0.01, 4), (0.005, 4)]])
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(
        LpGradient(torch.optim.Adam(params)), max_lr=0.1, total_steps=9
    )  # looks at the wrapped optimizer's betas
    assert one_cycle.optimizer.param_groups[0]["betas"] == (0.95, 0.999)


def test_p_scheduler_sets_a_constant_p() -> None:
    (param,) = filled((3,))
    optimizer = LpGradient(torch.optim.SGD([param], lr=0.1), p=6.0)
    scheduler = PScheduler(optimizer, CosineP(6, total_steps=3))
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["p"] == 4.0


def test_added_groups_start_at_the_present_count() -> None:
    params = filled((3,), (2,), (2,))
    inner = torch.optim.SGD([params[0]], lr=0.1)
    optimizer = LpGradient(inner, p=LinearP(6, total_steps=5))
    optimizer.step()
    optimizer.step()
    optimizer.add_param_group({"params": [params[1]], "lr": 0.2})
    inner.add_param_group({"params": [params[2]], "p": 3.0})
    optimizer.step()
    assert [group["p"] for group in inner.param_groups] == [4.0, 4.0, 3.0]
    assert [int(group["lp_step"]) for group in inner.param_groups] == [3, 3, 3]
    assert inner.param_groups[1]["lr"] == 0.2
    with pytest.raises(ValueError, match=r"p must be a number from 2 to inf, got 1\.0"):
        optimizer.add_param_group({"params": filled((2,)), "p": 1.0})
    assert len(inner.param_groups) == 3


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_run_goes_on_from_a_file_to_the_last_bit(name: str, dtype: torch.dtype) -> None:
    kind, _, settings = INSIDE[name]
    problem = oracles.Quadratic()

    def make(params: list[Tensor]) -> LpGradient:
        return LpGradient(kind(params, **settings), p=CosineP(6, total_steps=20))

    straight = parameters(problem, dtype)
    expected = walk(make(straight), straight, problem, 20)
    params = parameters(problem, dtype)
    first = make(params)
    walk(first, params, problem, 10)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make(params)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.param_groups is second.optimizer.param_groups
    rest = walk(second, params, problem, 10, first=11)
    assert largest_difference(rest, [points[10:] for points in expected]) == 0


def test_loading_keeps_the_schedule_as_constructed_and_takes_a_constant_p() -> None:
    (param,) = filled((3,))
    saved = LpGradient(torch.optim.SGD([param]), p=5.0).state_dict()
    other = LpGradient(torch.optim.SGD([param]), p=3.0)
    other.load_state_dict(saved)
    assert other.param_groups[0]["p"] == 5.0
    scheduled = LpGradient(torch.optim.SGD([param]), p=CosineP(6, total_steps=9))
    with pytest.warns(UserWarning, match="continues with p=CosineP"):
        scheduled.load_state_dict(saved)
    assert scheduled.param_groups[0]["p_schedule"] == CosineP(6, total_steps=9)
    bare = torch.optim.SGD([param], lr=0.7).state_dict()
    scheduled.load_state_dict(bare)  # from before it was wrapped
    assert scheduled.param_groups[0]["lr"] == 0.7
    assert scheduled.param_groups[0]["p"] == 6.0
    scheduled.step()


def test_hooks_see_the_true_gradient_outside_and_the_scaled_one_inside() -> None:
    (param,) = filled((3,))
    inner = torch.optim.SGD([param], lr=0.1)
    optimizer = LpGradient(inner, p=INF, eps=1e-12)
    seen: dict[str, Tensor] = {}
    for name, which in (("outside", optimizer), ("inside", inner)):
        which.register_step_pre_hook(lambda *_, name=name: seen.update({name: param.grad.clone()}))
    optimizer.register_step_post_hook(lambda *_: seen.update(after=param.grad.clone()))
    optimizer.step()
    assert torch.equal(seen["outside"], param.grad)
    assert torch.allclose(seen["inside"], param.grad.sign())
    assert torch.equal(seen["after"], param.grad)

    calls = []
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, saved: calls.append(saved["extra"]))
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["save", 1, "loaded"]


def test_copies_and_pickles() -> None:
    (param,) = filled((3,))
    optimizer = LpGradient(
        torch.optim.SGD([param], lr=0.1, momentum=0.9), p=CosineP(6, total_steps=9)
    )
    optimizer.step()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert twin.param_groups is twin.optimizer.param_groups
        (copied,) = twin.param_groups[0]["params"]
        assert copied is not param
        copied.grad = param.grad.clone()
        twin.step()
        assert int(twin.param_groups[0]["lp_step"]) == 2
    assert int(optimizer.param_groups[0]["lp_step"]) == 1
    assert "LpGradient of SGD" in repr(optimizer)
    assert "CosineP(p_max=6.0" in repr(optimizer)


def test_a_step_that_grad_scaler_skips_does_not_count() -> None:
    (param,) = filled((3,))
    optimizer = LpGradient(torch.optim.SGD([param], lr=0.1), p=LinearP(6, total_steps=5))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for value in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((param * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert int(optimizer.param_groups[0]["lp_step"]) == 1


def test_saving_with_distributed_checkpoint_does_not_move_p() -> None:
    """It takes a step with zero gradients and a zero rate where there is no state."""
    model = torch.nn.Linear(4, 3)
    schedule = CosineP(6, total_steps=10)
    optimizer = LpGradient(torch.optim.SGD(model.parameters(), lr=0.1), p=schedule)
    for count in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(2):
            saved = get_optimizer_state_dict(model, optimizer)
        assert int(saved["param_groups"][0]["lp_step"]) == count + 1
        assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_step_of_a_warm_up_from_zero_counts() -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = LpGradient(
        torch.optim.SGD(model.parameters(), lr=0.0), p=LinearP(6, total_steps=10)
    )
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert int(optimizer.param_groups[0]["lp_step"]) == 1


def test_complex_gradients_are_pairs_of_reals() -> None:
    param = torch.ones(2, dtype=torch.complex128, requires_grad=True)
    param.grad = torch.tensor([4 - 9j, 0.25j], dtype=torch.complex128)
    LpGradient(torch.optim.SGD([param], lr=1.0), p=3.0, eps=1e-15).step()
    assert torch.allclose(param.detach(), 1 - torch.tensor([2 - 3j, 0.5j], dtype=torch.complex128))


@needs_torch(2, 13, "the Adam inside writes over what autograd needs before")
def test_autograd_sees_the_scaling() -> None:
    def end(lr: Tensor, start: Tensor) -> Tensor:
        param = start.clone()
        inner = torch.optim.Adam([param], lr=lr, eps=0.1, differentiable=True, foreach=False)
        optimizer = LpGradient(inner, p=4.0, eps=1e-2)
        for _ in range(2):
            param.grad = param.clone() ** 3
            optimizer.step()
        return param

    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    start = torch.tensor([1.0, -2.0, 1.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(end, (lr, start))


def test_a_capturable_optimizer_keeps_p_in_a_tensor() -> None:
    problem = oracles.Quadratic()
    walks = []
    for capturable in (False, True):
        params = parameters(problem)
        inner = Signum(params, lr=0.02, capturable=capturable)
        optimizer = LpGradient(inner, p=CosineP(6, total_steps=STEPS), eps=1e-2)
        p = optimizer.param_groups[0]["p"]
        walks.append(walk(optimizer, params, problem, STEPS))
        assert isinstance(p, Tensor) == capturable
        assert not capturable or optimizer.param_groups[0]["p"] is p  # a graph writes in place
    assert largest_difference(*walks) < 1e-12


def test_errors_say_what_is_wrong() -> None:
    (param,) = filled((3,))
    inner = torch.optim.SGD([param], lr=0.1)
    with pytest.raises(TypeError, match=r"optimizer must be a torch.optim.Optimizer, got \[\]"):
        LpGradient([])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="optimizer=LPSGD has a p of its own"):
        LpGradient(LPSGD([param]))
    with pytest.raises(ValueError, match="p must be a number from 2 to inf, got 1"):
        LpGradient(inner, p=1)
    with pytest.raises(ValueError, match="eps must be a finite number > 0, got 0"):
        LpGradient(inner, eps=0)
    with pytest.raises(ValueError, match="normalize must be one of None, 'dual', 'rms', got 'l2'"):
        LpGradient(inner, normalize="l2")  # type: ignore[arg-type]
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="LpGradient does not take sparse gradients"):
        LpGradient(torch.optim.SGD(table.parameters())).step()


def test_an_optimizer_or_group_that_is_refused_is_left_as_it_was() -> None:
    sgd = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
    with pytest.raises(ValueError, match="gave p=1.0 at step 0"):
        LpGradient(sgd, p=lambda step: 1.0)
    optimizer = LpGradient(sgd, p=4.0)  # it was not half wrapped
    for wrong in ({"p": lambda step: 1.0}, {"p_schedule": 6}, {"p": 1.5}):
        with pytest.raises(ValueError, match="gave p=1.0|None or callable, got 6|from 2 to inf"):
            optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)], **wrong})
        assert len(optimizer.param_groups) == 1
    with pytest.raises(TypeError, match="must be a dict"):
        optimizer.add_param_group([torch.ones(1)])  # type: ignore[arg-type]
