"""A state dict of another optimizer is refused, by its keys; one's own of any age is loaded."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from lpsgd import LPSGD, LPSGDM, CosineP, LPMuon
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
from lpsgd.peers.sgdw import SGDW
from lpsgd.transform import LpGradient
from tests.optimizer_problem import gradients, run, start

Params = list[torch.Tensor]

OURS: dict[str, Any] = {
    "LPSGD": LPSGD,
    "LPSGDM": LPSGDM,
    "LPMuon": LPMuon,
    "SignSGD": SignSGD,
    "Signum": Signum,
    "Lion": Lion,
    "LionK": LionK,
    "PowerSGDM": PowerSGDM,
    "PowerStep": PowerStep,
    "CautiousAdamW": CautiousAdamW,
    "Stacey": Stacey,
    "SGDW": SGDW,
    "LpGradient of SGD": lambda params: LpGradient(torch.optim.SGD(params)),
    "LpGradient of Lion": lambda params: LpGradient(Lion(params)),
}
# what the error says of each; torch's Adam and AdamW differ in no key
THEIRS: dict[str, tuple[Any, str]] = {
    "AdamW": (torch.optim.AdamW, "Adam or AdamW"),
    "Adam": (lambda params: torch.optim.Adam(params, amsgrad=True), "Adam or AdamW"),
    "SGD": (torch.optim.SGD, "SGD"),
    "SGD with momentum": (lambda params: torch.optim.SGD(params, momentum=0.9), "SGD"),
    "RMSprop": (torch.optim.RMSprop, "RMSprop"),
    "Adagrad": (torch.optim.Adagrad, "Adagrad"),
    "NAdam": (torch.optim.NAdam, "NAdam"),
    **{name: (make, name.partition(" ")[0]) for name, make in OURS.items()},
}


def saved(make: Any, steps: int) -> dict[str, Any]:
    params = start()
    optimizer = make(params)
    run(optimizer, params, gradients(steps))
    state: dict[str, Any] = optimizer.state_dict()
    return state


def refuses(optimizer: Optimizer, file: dict[str, Any], name: str) -> None:
    """It says what the file is, what it is itself, what to do, and stays as it was."""
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=rf"looks like one of {name}\b") as error:
        optimizer.load_state_dict(copy.deepcopy(file))
    assert f"this optimizer is {type(optimizer).__name__}" in str(error.value)
    assert re.search("load only the weights .* new optimizer", str(error.value))
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


def may_load(own: str, other: str) -> bool:
    """Itself, or the optimizer that it wraps, whatever its settings are."""
    other = other.removesuffix(" with momentum")
    return own in (other, f"LpGradient of {other}")


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("own_steps", [0, 2])
@pytest.mark.parametrize("own", OURS)
def test_another_optimizers_state_is_refused(own: str, own_steps: int, steps: int) -> None:
    for other, (make, name) in THEIRS.items():
        params = start()
        optimizer = OURS[own](params)
        run(optimizer, params, gradients(own_steps))
        if may_load(own, other):
            optimizer.load_state_dict(saved(make, steps))
        else:
            refuses(optimizer, saved(make, steps), name)


def without_momentum(params: Params) -> LPSGDM:
    return LPSGDM(params, momentum=0.0)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LPSGD, without_momentum),
        (without_momentum, LPSGD),
        (SignSGD, lambda params: Signum(params, momentum=0.0)),
        (lambda params: Signum(params, momentum=0.0), SignSGD),
        (lambda params: GSGD(params, total_steps=5), lambda params: GSGD(params, total_steps=5)),
        (LPSGDM, without_momentum),  # the file's setting holds, as it does for lr
        (without_momentum, LPSGDM),
    ],
)
def test_what_is_the_same_optimizer_without_momentum_is_loaded(
    one: Any, other: Any, steps: int
) -> None:
    params = start()
    optimizer = other(params)
    optimizer.load_state_dict(saved(one, steps))
    run(optimizer, params, gradients(1))
    assert int(optimizer.state[params[0]]["step"]) == steps + 1


@pytest.mark.parametrize("steps", [0, 3])
def test_momentum_is_neither_lost_nor_missing(steps: int) -> None:
    refuses(LPSGD(start()), saved(LPSGDM, steps), "LPSGDM")
    refuses(LPSGDM(start()), saved(LPSGD, steps), "LPSGD")


def test_keys_that_users_add_are_no_sign_of_another_optimizer() -> None:
    """A group's own keys (torch lets users add any), an LR scheduler's, and more state."""
    params = start()
    groups = [{"params": params[:1], "name": "decay", "lr_scale": 0.5}, {"params": params[1:]}]
    optimizer = LPSGDM(groups, p=CosineP(6, total_steps=9))
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    run(optimizer, params, gradients(2))
    for param in params:
        optimizer.state[param]["ema"] = param.detach().clone()
    other = LPSGDM([{"params": start()[:1]}, {"params": start()[1:]}], p=CosineP(6, total_steps=9))
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["name"] == "decay"
    assert other.param_groups[0]["initial_lr"] == 1e-3

    taken = LPSGDM([{"params": start(), "betas": (0.9, 0.99)}])  # one dict for every optimizer
    taken.load_state_dict(LPSGDM([{"params": start(), "betas": (0.9, 0.99)}]).state_dict())


def test_state_of_an_optimizer_that_nobody_knows() -> None:
    """Its settings may be a part of ours; its buffers tell."""

    class Mine(Optimizer):
        def __init__(self, params: Params) -> None:
            super().__init__(params, {"lr": 0.1, "weight_decay": 0.0, "lookahead": 5})

        def step(self, closure: Any = None) -> None:
            for param in self.param_groups[0]["params"]:
                self.state[param]["slow"] = torch.ones_like(param)

    with pytest.raises(ValueError, match="another optimizer, and this .* SignSGD .*buffer 'slow'"):
        SignSGD(start()).load_state_dict(saved(Mine, 1))
    with pytest.raises(ValueError, match="this optimizer is LPSGDM .*lacks the setting 'p'"):
        LPSGDM(start()).load_state_dict(saved(Mine, 1))


def test_the_hook_of_a_user_may_convert_a_foreign_file() -> None:
    optimizer = LPSGDM(start())

    def convert(_: Any, file: dict[str, Any]) -> dict[str, Any]:
        groups = [{**own, "params": group["params"]} for own, group in zip(
            LPSGDM(start()).state_dict()["param_groups"], file["param_groups"], strict=True
        )]  # fmt: skip
        state = {key: {"step": held["step"], "momentum_buffer": held["exp_avg"]}
                 for key, held in file["state"].items()}  # fmt: skip
        return {"param_groups": groups, "state": state}

    optimizer.register_load_state_dict_pre_hook(convert)
    file = saved(torch.optim.AdamW, 3)
    optimizer.load_state_dict(file)
    (first, *_) = optimizer.param_groups[0]["params"]
    assert torch.equal(optimizer.state[first]["momentum_buffer"], file["state"][0]["exp_avg"])
