"""Saving, loading, copying and pickling: a run that was interrupted continues bit for bit."""

from __future__ import annotations

import copy
import io
import pickle
import runpy
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from lpsgd import LPSGD, LPSGDM, ConstantP, CosineP, LinearP
from lpsgd.transform import LpGradient
from tests.optimizer_problem import STEPS, gradients, run, start

SCHEDULE = CosineP(6, total_steps=STEPS)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """What is left of a state dict after the strictest way of saving and loading."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    loaded: dict[str, Any] = torch.load(stream, weights_only=True)
    return loaded


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options", [{}, {"state_dtype": torch.float64}, {"capturable": True}, {"momentum": 0.0}]
)
def test_resume_continues_bit_for_bit(dtype: torch.dtype, options: dict[str, Any]) -> None:
    params, grads = start(dtype), gradients(STEPS, dtype)
    optimizer = LPSGDM(params, p=SCHEDULE, weight_decay=0.1, **options)
    run(optimizer, params, grads[:20])
    saved, state = copies(params), through_a_file(optimizer.state_dict())
    run(optimizer, params, grads[20:])

    other = LPSGDM(saved, p=SCHEDULE, weight_decay=0.1, **options)
    other.load_state_dict(state)
    assert float(other.param_groups[0]["p"]) == pytest.approx(SCHEDULE(20))
    run(other, saved, grads[20:])
    assert same(params, saved)
    for x, y in zip(params, saved, strict=True):
        for name, value in optimizer.state[x].items():
            assert other.state[y][name].dtype == value.dtype
            assert torch.equal(other.state[y][name], value)
    assert len({id(other.state[y]["step"]) for y in saved}) == 1


def test_loading_shares_nothing_with_the_source() -> None:
    params, twins = start(), start()
    one, two = LPSGDM(params, p=SCHEDULE), LPSGDM(twins, p=SCHEDULE)
    run(one, params, gradients(3))
    two.load_state_dict(one.state_dict())
    run(one, params, gradients(2))
    assert int(two.state[twins[0]]["step"]) == 3
    assert not torch.equal(
        two.state[twins[0]]["momentum_buffer"], one.state[params[0]]["momentum_buffer"]
    )


def test_float32_momentum_of_half_parameters_survives() -> None:
    """torch casts float buffers to the parameter's dtype on load; that would lose digits."""
    params = start(torch.bfloat16)
    optimizer = LPSGDM(params)
    run(optimizer, params, gradients(5, torch.bfloat16))
    other = LPSGDM(copies(params))
    other.load_state_dict(optimizer.state_dict())
    for x, y in zip(params, other.param_groups[0]["params"], strict=True):
        assert other.state[y]["momentum_buffer"].dtype == torch.float32
        assert torch.equal(other.state[y]["momentum_buffer"], optimizer.state[x]["momentum_buffer"])


def test_state_dict_is_plain() -> None:
    params = start()
    optimizer = LPSGDM(params, p=lambda step: 6.0 / (1 + step) + 2)
    run(optimizer, params, gradients(2))
    group = optimizer.state_dict()["param_groups"][0]
    assert group["p_schedule"] == {"name": "test_state_dict_is_plain.<locals>.<lambda>"}
    assert group["p"] == 5.0
    group = LPSGDM(start(), p=SCHEDULE).state_dict()["param_groups"][0]
    assert group["p_schedule"] == {
        "name": "CosineP",
        "p_max": 6.0,
        "total_steps": STEPS,
        "p_min": 2.0,
    }
    through_a_file(optimizer.state_dict())
    assert callable(optimizer.param_groups[0]["p_schedule"])  # the optimizer keeps its own


def load(saved_p: Any, own_p: Any) -> tuple[LPSGDM, list[str]]:
    params = start()
    source = LPSGDM(params, p=saved_p)
    run(source, params, gradients(7))
    target = LPSGDM(copies(params), p=own_p)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        target.load_state_dict(through_a_file(source.state_dict()))
    assert all(w.filename == __file__ for w in seen)
    return target, [str(w.message) for w in seen]


def test_load_with_the_same_schedule() -> None:
    target, said = load(SCHEDULE, CosineP(6.0, total_steps=STEPS))
    assert said == []
    assert target.param_groups[0]["p"] == SCHEDULE(7)


def test_load_with_a_longer_schedule() -> None:
    longer = CosineP(6, total_steps=2 * STEPS)
    target, said = load(SCHEDULE, longer)
    assert len(said) == 1
    assert "saved with p=CosineP(p_max=6.0, total_steps=60, p_min=2.0)" in said[0]
    assert "continues with p=CosineP(p_max=6.0, total_steps=120, p_min=2.0)" in said[0]
    assert target.param_groups[0]["p_schedule"] is longer
    assert target.param_groups[0]["p"] == longer(7)


def test_load_without_a_schedule() -> None:
    target, said = load(SCHEDULE, 4.0)
    assert len(said) == 1
    assert "continues with p=4.0 (constant)" in said[0]
    assert target.param_groups[0]["p"] == 4.0
    assert target.param_groups[0]["p_schedule"] is None


def test_load_a_constant_p_into_a_schedule() -> None:
    target, said = load(5.0, LinearP(6, total_steps=20))
    assert len(said) == 1
    assert "saved with p=5.0 (constant)" in said[0]
    assert target.param_groups[0]["p"] == LinearP(6, total_steps=20)(7)


def test_load_a_constant_p_into_another() -> None:
    """p is then a setting like lr: the file's holds."""
    target, said = load(5.0, 3.0)
    assert said == []
    assert target.param_groups[0]["p"] == 5.0
    target, said = load(ConstantP(5.0), ConstantP(3.0))
    assert len(said) == 1
    assert target.param_groups[0]["p"] == 3.0


def test_how_to_run_stays_as_constructed() -> None:
    """A file saved with the fused kernel loads where there is none, and so on."""
    params = start()
    optimizer = LPSGDM(params, lr=0.5, foreach=True)
    run(optimizer, params, gradients(2))
    state = optimizer.state_dict()
    state["param_groups"][0].update(fused=True, foreach=None, capturable=True, differentiable=False)
    other = LPSGDM(copies(params), foreach=False, fused=False)
    other.load_state_dict(through_a_file(state))
    group = other.param_groups[0]
    assert (group["foreach"], group["fused"], group["capturable"]) == (False, False, False)
    assert group["lr"] == 0.5
    run(other, group["params"], gradients(1))


def test_an_older_file_still_loads() -> None:
    params = start()
    optimizer = LPSGDM(params, p=SCHEDULE, normalize="rms")
    run(optimizer, params, gradients(4))
    state = optimizer.state_dict()
    for name in ("normalize", "state_dtype", "maximize", "p_schedule", "capturable", "fused"):
        del state["param_groups"][0][name]
    other = LPSGDM(copies(params), p=SCHEDULE, normalize="dual")
    other.load_state_dict(state)
    assert other.param_groups[0]["normalize"] == "dual"
    assert other.param_groups[0]["p"] == SCHEDULE(4)
    run(other, other.param_groups[0]["params"], gradients(1))

    for held in state["state"].values():  # a file from before the count was kept
        del held["step"]
    other.load_state_dict(state)
    assert int(other.state[other.param_groups[0]["params"][0]]["step"]) == 0


def test_user_hooks_see_and_change_what_is_loaded() -> None:
    params = start()
    optimizer = LPSGDM(params)
    run(optimizer, params, gradients(3))
    other = LPSGDM(copies(params))
    seen = []

    def double(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        state = copy.deepcopy(state)
        for held in state["state"].values():
            held["momentum_buffer"] *= 2
        return state

    other.register_load_state_dict_pre_hook(double)
    other.register_load_state_dict_post_hook(
        lambda o: seen.append(next(iter(o.state.values()))["momentum_buffer"].clone())
    )
    other.load_state_dict(optimizer.state_dict())
    expected = 2 * optimizer.state[params[0]]["momentum_buffer"]
    assert torch.equal(seen[0], expected)
    assert torch.equal(other.state[other.param_groups[0]["params"][0]]["momentum_buffer"], expected)


def test_a_file_that_does_not_fit_changes_nothing() -> None:
    params = start()
    optimizer = LPSGDM(params, p=SCHEDULE)
    run(optimizer, params, gradients(2))
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert optimizer.state_dict()["param_groups"] == before["param_groups"]
    assert not optimizer._optimizer_load_state_dict_pre_hooks


RESUME = """
import sys, torch
from lpsgd import LPSGDM, CosineP
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = LPSGDM(model.parameters(), lr=0.01, p=CosineP(6, total_steps=40), normalize="rms")
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
first, last, load, save = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if load != "-":
    file = torch.load(load, weights_only=True)
    model.load_state_dict(file["model"])
    scheduler.load_state_dict(file["scheduler"])
    optimizer.load_state_dict(file["optimizer"])
for step in range(first, last):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    scheduler.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict()}, save)
"""


def test_a_new_process_continues_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(RESUME))

    def train_here(last: int, name: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["train.py", "0", str(last), "-", str(tmp_path / name)])
        runpy.run_path(str(script))
        return tmp_path / name

    whole = torch.load(train_here(30, "whole.pt"), weights_only=True)
    given = [13, 30, train_here(13, "part.pt"), tmp_path / "resumed.pt"]
    subprocess.run([sys.executable, script, *map(str, given)], check=True)
    resumed = torch.load(tmp_path / "resumed.pt", weights_only=True)
    for name, value in whole["model"].items():
        assert torch.equal(resumed["model"][name], value)
    for key, state in whole["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(resumed["optimizer"]["state"][key][name], value)
    assert resumed["optimizer"]["param_groups"] == whole["optimizer"]["param_groups"]


@pytest.mark.parametrize("normalize", [None, "dual", "rms"])
@pytest.mark.parametrize("cls", [LPSGD, LPSGDM])
def test_distributed_checkpoint_probes_leave_no_mark(
    cls: type[LPSGD], normalize: str | None
) -> None:
    """It initialises an empty optimizer by a step with zero gradients and a zero rate."""
    model = nn.Linear(4, 3)
    optimizer = cls(
        model.parameters(),
        lr=0.1,
        weight_decay=0.5,
        p=CosineP(6, total_steps=10),
        normalize=normalize,
    )
    before = copies(list(model.parameters()))
    for _ in range(3):
        get_optimizer_state_dict(model, optimizer)
    assert same(list(model.parameters()), before)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert int(optimizer.state[model.weight]["step"]) == 0  # the first step is still to come

    fresh = cls(model.parameters(), lr=0.1, p=CosineP(6, total_steps=10), normalize=normalize)
    model(torch.ones(2, 4)).sum().backward()
    fresh.step()
    after, p = copies(list(model.parameters())), fresh.param_groups[0]["p"]
    fresh.zero_grad()
    for _ in range(3):
        state = get_optimizer_state_dict(model, fresh)
    assert same(list(model.parameters()), after)
    assert int(fresh.state[model.weight]["step"]) == 1
    assert fresh.param_groups[0]["p"] == p

    other = cls(model.parameters(), lr=0.1, p=CosineP(6, total_steps=10), normalize=normalize)
    set_optimizer_state_dict(model, other, state)
    assert int(other.state[model.weight]["step"]) == 1
    assert same(list(model.parameters()), after)


@pytest.mark.parametrize("p", [SCHEDULE, 4.0])
def test_deepcopy_and_pickle(p: Any) -> None:
    params, grads = start(), gradients()
    optimizer = LPSGDM(params, p=p, normalize="dual")
    run(optimizer, params, grads[:5])
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        mine = twin.param_groups[0]["params"]
        assert len({id(twin.state[x]["step"]) for x in mine}) == 1
        run(twin, mine, grads[5:])
        straight = start()
        whole = LPSGDM(straight, p=p, normalize="dual")
        run(whole, straight, grads)
        assert same(mine, straight)
        assert repr(twin) == repr(whole)


def test_what_cannot_be_pickled_is_named() -> None:
    params = start()
    optimizer = LPSGDM(params, p=lambda step: 3.0)
    run(optimizer, params, gradients(1))
    optimizer.state_dict()
    twin = copy.deepcopy(optimizer)  # copying a function is no trouble
    assert twin.param_groups[0]["p"] == 3.0
    copy.copy(optimizer)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(optimizer)


def test_a_count_that_a_tool_has_split_is_shared_again() -> None:
    params = start()
    optimizer = LPSGDM(params)
    run(optimizer, params, gradients(3))
    for x in params:
        optimizer.state[x]["step"] = optimizer.state[x]["step"].clone()
    run(optimizer, params, gradients(2))
    assert {int(optimizer.state[x]["step"]) for x in params} == {5}
    assert len({id(optimizer.state[x]["step"]) for x in params}) == 1


def test_a_buffer_of_none_is_made_anew() -> None:
    params = start()
    optimizer = LPSGDM(params)
    run(optimizer, params, gradients(1))
    state = optimizer.state_dict()
    state["state"][0]["momentum_buffer"] = None
    optimizer.load_state_dict(state)
    run(optimizer, params, gradients(1))
    assert optimizer.state[params[0]]["momentum_buffer"].shape == params[0].shape


def test_a_meta_optimizer_can_be_shown_and_loaded() -> None:
    meta = torch.zeros(3, device="meta", requires_grad=True)
    optimizer = LPSGDM([meta], p=SCHEDULE, capturable=True)
    meta.grad = torch.zeros_like(meta)
    optimizer.step()
    repr(LPSGDM([meta], p=3.0, capturable=True))
    optimizer.add_param_group({"params": start()})
    assert float(optimizer.param_groups[1]["p"]) == 6.0


def test_an_older_pickle_gets_the_newer_settings() -> None:
    optimizer = LPSGDM(start())
    for name in ("normalize", "state_dtype", "p_schedule"):
        del optimizer.param_groups[0][name]
    twin = pickle.loads(pickle.dumps(optimizer))
    assert twin.param_groups[0]["normalize"] is None
    assert twin.param_groups[0]["p_schedule"] is None


def test_repr_tells_the_schedule() -> None:
    assert "p=6.0 (constant)" in repr(LPSGDM(start()))
    assert "p=CosineP(p_max=6.0, total_steps=60, p_min=2.0)" in repr(LPSGDM(start(), p=SCHEDULE))
    assert "p=6.0 (constant)" in repr(LPSGD(start(), capturable=True))


def test_numbers_of_numpy_that_were_set_by_hand_are_saved_as_plain_ones() -> None:
    params = start()
    for optimizer in (LPSGDM(params), LpGradient(torch.optim.SGD(params), p=np.float64(3))):
        optimizer.param_groups[0].update(p=np.linspace(6, 2, 5)[1], lr=np.float64(0.1))
        run(optimizer, params, gradients(1))
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        (group,) = torch.load(file, weights_only=True)["param_groups"]
        assert (group["p"], group["lr"]) == (5.0, 0.1)


def test_a_hook_gets_the_plain_state_dict_and_may_make_anything_of_it() -> None:
    optimizer = LPSGDM(start(), p=CosineP(6, total_steps=5))
    optimizer.register_state_dict_post_hook(lambda _, saved: {"mine": saved})
    saved = optimizer.state_dict()["mine"]
    assert saved["param_groups"][0]["p_schedule"]["name"] == "CosineP"
    assert len(optimizer._optimizer_state_dict_post_hooks) == 1  # ours does not stay


@pytest.mark.parametrize("name", ["normalize", "state_dtype", "eps"])
def test_a_setting_that_an_old_file_lacks_stays_the_groups_own(name: str) -> None:
    own = {"normalize": "rms", "state_dtype": torch.float64, "eps": 1e-5}
    params = start()

    def make() -> LPSGDM:
        return LPSGDM([{"params": params[:1]}, {"params": params[1:], **own}], lr=0.1)

    file = make().state_dict()
    for group in file["param_groups"]:
        del group[name]
    optimizer = make()
    optimizer.load_state_dict(file)
    assert optimizer.param_groups[1][name] == own[name]
    assert optimizer.param_groups[0][name] == optimizer.defaults[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("fused", [None, True])
def test_a_file_of_another_memory_format(dtype: torch.dtype, fused: bool | None) -> None:
    """A run that goes on in channels_last keeps its kernel, and its numbers."""
    torch.manual_seed(0)
    shape = (4, 3, 2, 5)
    values, grads = torch.randn(shape, dtype=dtype), torch.randn(4, *shape, dtype=dtype)
    plain = values.clone().requires_grad_()
    first = LPSGDM([plain], lr=0.1, fused=fused)
    run(first, [plain], [[grad] for grad in grads[:2]])
    other = plain.detach().clone(memory_format=torch.channels_last).requires_grad_()
    second = LPSGDM([other], lr=0.1, fused=fused)
    second.load_state_dict(through_a_file(first.state_dict()))
    buffer = second.state[other]["momentum_buffer"]
    here = torch.view_as_real(other.detach()) if dtype.is_complex else other
    assert buffer.stride() == here.stride()
    run(first, [plain], [[grad] for grad in grads[2:]])
    run(second, [other], [[grad] for grad in grads[2:]])
    # the kernel rounds otherwise at the end of a block than within
    torch.testing.assert_close(other.detach(), plain.detach(), rtol=1e-6, atol=1e-6)
