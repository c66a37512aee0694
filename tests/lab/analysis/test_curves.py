"""Learning curves against an independent computation with numpy and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from lpsgd.lab.analysis.curves import averaged, final_values, learning_curve
from lpsgd.lab.store.metrics_file import MetricsRow
from lpsgd.lab.store.run_record import RunRecord
from lpsgd.lab.training.metrics import update_rms


def run(seed, values, state="complete", **columns):
    """A run with ``values`` of test_nll, one for each epoch; epoch k takes k + seed seconds."""
    rows = [
        MetricsRow(
            epoch=k, seconds=k + seed, test_nll=y, **{name: c[k - 1] for name, c in columns.items()}
        )
        for k, y in enumerate(values, start=1)
    ]
    return RunRecord("sgd", seed, "", state, history=tuple(rows))


COMPLETE = [run(0, [1.0, 4.0, 9.0]), run(1, [2.0, 4.5, 8.0]), run(2, [4.0, 6.0, 7.0])]
DIVERGED = run(3, [100.0, 1e9, math.nan], "diverged")
STOPPED = run(4, [50.0], "incomplete")
ABSENT = RunRecord("sgd", 5, "", "not started")


def test_points_are_those_of_the_complete_runs():
    curve = learning_curve([DIVERGED, COMPLETE[0], STOPPED, *COMPLETE[1:], ABSENT], "test_nll")
    values = np.array([[row.test_nll for row in one.history] for one in COMPLETE])
    clock = np.cumsum([[row.seconds for row in one.history] for one in COMPLETE], axis=1)
    low, high = scipy.stats.t.interval(
        0.95, 2, loc=values.mean(axis=0), scale=scipy.stats.sem(values)
    )
    columns = {
        "epoch": [1, 2, 3],
        "seconds": clock.mean(axis=0),
        "mean": values.mean(axis=0),
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "low": low,
        "high": high,
        "n": [3, 3, 3],
    }
    assert columns.keys() == set(curve.points[0]._fields)
    for name, expected in columns.items():
        assert [getattr(point, name) for point in curve.points] == pytest.approx(list(expected))


def test_runs_are_those_averaged_and_then_the_diverged_until_they_diverge():
    curve = learning_curve([DIVERGED, *COMPLETE, STOPPED, ABSENT], "test_nll")
    assert [(one.seed, one.diverged) for one in curve.runs] == [
        (0, False),
        (1, False),
        (2, False),
        (3, True),
    ]
    diverged = curve.runs[-1]
    assert (diverged.epoch, diverged.seconds, diverged.y) == ((1, 2), (4, 9), (100, 1e9))


@pytest.mark.parametrize(
    ("runs", "seeds"),
    [
        ([*COMPLETE, STOPPED, DIVERGED], [0, 1, 2]),
        ([STOPPED, DIVERGED, ABSENT], [4]),
        ([DIVERGED, ABSENT], []),
        ([], []),
    ],
)
def test_which_runs_are_averaged(runs, seeds):
    assert [one.seed for one in averaged(runs)] == seeds
    curve = learning_curve(runs, "test_nll")
    assert [one.seed for one in curve.runs if not one.diverged] == seeds
    assert bool(curve.points) == bool(seeds)


def test_epochs_without_a_value_are_left_out():
    runs = [run(0, [1.0, None, 3.0]), run(1, [2.0, math.inf, math.nan])]
    curve = learning_curve(runs, "test_nll")
    assert [(p.epoch, p.mean, p.n, p.low is None) for p in curve.points] == [
        (1, 1.5, 2, False),
        (3, 3.0, 1, True),
    ]
    assert learning_curve(runs, "unmeasured") == learning_curve([], "test_nll")


def test_metrics_that_follow_from_others():
    one = run(
        0, [0.0] * 4, p=[math.inf, 11.0, 2.0, None], update_rms=[6.0, 0, 2, 1], lr=[2.0, 1, 0, 4]
    )
    assert learning_curve([one], "alpha").runs[0].y == pytest.approx((0, 0.1, 1))
    length = learning_curve([one], "update_per_lr").runs[0]
    assert (length.epoch, length.y) == ((1, 4), (3, 0.25))


def test_an_update_that_rounding_swallows_says_nothing_of_the_rule():
    """The same update per lr throughout: torch's SGD on float32, lr by a cosine to nearly 0."""
    torch.manual_seed(0)
    weight = (0.1 * torch.randn(100_000)).requires_grad_()
    lrs = [1e-2, 1e-4, 1e-6, 1e-7, 1e-8, 1e-9, 1e-12]
    updates = []
    for lr in lrs:
        before = weight.detach().clone()
        weight.grad = torch.randn_like(weight)
        torch.optim.SGD([weight], lr=lr).step()
        updates.append(update_rms([before], [weight.detach()]))
    assert updates[-1] / lrs[-1] < 0.5  # rounding
    one = run(0, [0.0] * len(lrs), update_rms=updates, lr=lrs)
    length = learning_curve([one], "update_per_lr").runs[0]
    assert length.y == pytest.approx([1.0] * len(length.y), rel=0.05)
    assert len(length.y) >= 4


def test_final_values_are_of_complete_runs():
    infinite = run(6, [1.0, math.inf])
    assert final_values([*COMPLETE, STOPPED, DIVERGED, infinite], "test_nll") == {0: 9, 1: 8, 2: 7}
