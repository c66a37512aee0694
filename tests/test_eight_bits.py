"""Momentum in 8 bits: the table, unbiased codes, memory, every path, and good enough to train."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

from lpsgd import LPSGDM, CosineP
from lpsgd import _eight_bits as eight_bits
from lpsgd._rounding import MOMENTUM, noise_key
from tests.test_rounding import training

INT8 = torch.int8
TABLE = eight_bits.table(torch.device("cpu"))


def coded(values: Tensor, key: int = 0) -> tuple[Tensor, Tensor]:
    codes = torch.zeros_like(values, dtype=INT8)
    scales = eight_bits.new_scales(values.numel(), values.device)
    eight_bits.encode_into(codes, scales, values, key, TABLE)
    return codes, scales


def test_the_table_has_seven_decades() -> None:
    table = TABLE.double()
    assert len(table) == 255
    assert table[127] == 0
    assert torch.equal(table, -table.flip(0))
    positive = table[128:]
    assert (positive.diff() > 0).all()
    assert positive[-1] == 1
    assert 5e-7 < positive[0] < 1e-6
    # bitsandbytes' dynamic map: the middles of 2^k equal parts of each decade, the top one 64
    middles = 0.1 + 0.9 * (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    assert torch.allclose(positive[-64:], middles / middles[-1], rtol=1e-6)


def test_entries_of_the_table_and_the_largest_are_kept() -> None:
    values = torch.zeros(4096)
    values[:255] = 3.0 * TABLE
    values[300] = -1e-30
    codes, scales = coded(values)
    assert codes[300] == -127
    torch.testing.assert_close(eight_bits.decoded(codes, scales, TABLE), values, rtol=1e-6, atol=0)
    assert scales[0] == 3.0
    assert (scales[2:] == 0).all()


def test_the_mean_over_noise_is_the_value() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4096, generator=generator) * torch.logspace(-3, 2, 4096)
    draws = torch.stack(
        [
            eight_bits.decoded(*coded(values, int(noise_key(count, 0, MOMENTUM))), TABLE).double()
            for count in range(400)
        ]
    )
    spread = draws.std(0)
    z = (draws.mean(0) - values) / (spread / 20).clamp(min=1e-12 * values.abs())
    assert z[spread > 1e-6 * values.abs()].abs().max() < 6
    # at most two neighbours of the top decade, and coarser below
    large = values.abs() > 0.1 * eight_bits.decoded(*coded(values), TABLE).abs().view(16, 256).amax(
        1
    ).repeat_interleave(256)
    assert ((draws[0] - values).abs() / values.abs())[large].max() < 0.15


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_in_its_block(bad: float) -> None:
    values = torch.ones(4096)
    values[7] = bad
    back = eight_bits.decoded(*coded(values), TABLE)
    assert not back[7].isfinite()
    assert (back[256:] == 1).all()


def run(
    shape: tuple[int, ...], steps: int, dtype: torch.dtype = torch.float32, **settings: Any
) -> tuple[Tensor, LPSGDM]:
    weights = torch.ones(shape, dtype=dtype)
    if len(shape) == 4:
        weights = weights.to(memory_format=torch.channels_last)
    optimizer = LPSGDM([weights], lr=0.01, p=CosineP(6, total_steps=10), **settings)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        weights.grad = torch.randn(shape, generator=generator).to(dtype)
        optimizer.step()
    return weights, optimizer


PATHS: list[dict[str, Any]] = [{}, {"foreach": True}, {"foreach": False}, {"capturable": True}]


@pytest.mark.parametrize("shape", [(4096,), (65, 67), (32, 16, 3, 3)])
@pytest.mark.parametrize("normalize", [None, "rms", "dual"])
def test_every_path_takes_the_same_steps(shape: tuple[int, ...], normalize: Any) -> None:
    """To rounding of the momentum before it is coded, which may move a code by one."""
    ends = [run(shape, 4, state_dtype=INT8, normalize=normalize, **path)[0] for path in PATHS]
    exact, _ = run(shape, 4, normalize=normalize)
    for end in ends[1:]:
        assert (end - ends[0]).abs().mean() < 1e-5
    # what coding costs is a small part of the way
    assert 0 < (ends[0] - exact).abs().mean() < 0.03 * (exact - 1).abs().mean()


def test_momentum_takes_a_byte_and_a_little() -> None:
    weights, optimizer = run((300, 300), 1, state_dtype=INT8)
    state = optimizer.state[weights]
    held = sum(state[name].nbytes for name in ("momentum_buffer", "momentum_scale"))
    assert state["momentum_buffer"].dtype == INT8
    assert held / weights.numel() == pytest.approx(1 + 4 / 256, rel=1e-3)


def test_small_tensors_stay_exact() -> None:
    ours, optimizer = run((4095,), 5, state_dtype=INT8)
    exact, _ = run((4095,), 5)
    assert torch.equal(ours, exact)
    assert optimizer.state[ours]["momentum_buffer"].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    ours, _ = run((64, 64), 4, dtype, state_dtype=INT8)
    exact, _ = run((64, 64), 4, dtype)
    assert ours.dtype == dtype
    assert (ours - exact).abs().double().mean() < 3e-3


@pytest.mark.parametrize("shape", [(70, 60), (32, 16, 3, 3)])
def test_a_resumed_run_is_the_uninterrupted_one(shape: tuple[int, ...]) -> None:
    whole, _ = run(shape, 8, state_dtype=INT8)
    weights, first = run(shape, 5, state_dtype=INT8)
    second = LPSGDM([weights], lr=0.01, p=CosineP(6, total_steps=10), state_dtype=INT8)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in range(5, 8):
        generator = torch.Generator().manual_seed(step)
        weights.grad = torch.randn(shape, generator=generator)
        second.step()
    assert torch.equal(weights, whole)


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="state_dtype=torch.int8 and differentiable=True exclude"):
        LPSGDM([torch.ones(3)], state_dtype=INT8, differentiable=True)


@pytest.mark.slow
def test_the_final_loss_is_that_of_float32_within_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of equivalence that bfloat16 has: the 99 % interval of the mean difference lies
    within the deviation that the order of the batches makes in float32."""
    monkeypatch.setattr(eight_bits, "SMALLEST", 1)
    orders = range(24)
    reference = torch.tensor([training(None, torch.float32, k) for k in orders])
    ours = torch.tensor([training(INT8, torch.float32, k) for k in orders])
    assert not torch.equal(ours, reference)
    difference = (ours - reference).double().numpy()
    low, high = scipy.stats.t.interval(
        0.99, len(difference) - 1, difference.mean(), scipy.stats.sem(difference)
    )
    assert -float(reference.std()) < low
    assert high < float(reference.std())
