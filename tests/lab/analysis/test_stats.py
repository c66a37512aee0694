"""The laboratory's statistics against scipy, textbooks and simulation."""

from __future__ import annotations

import doctest
import math
import random

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from lpsgd.lab import formatting as numbers
from lpsgd.lab.analysis import stats
from lpsgd.lab.report import comparison_page, document
from lpsgd.lab.store.disk import jsonio as strict

VALUES = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=12)


@pytest.mark.parametrize("module", [numbers, stats, strict, comparison_page, document])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


@given(VALUES)
def test_summary_equals_scipy(values):
    s = stats.summarise(values)
    assert s.n == len(values)
    assert s.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert s.sd == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    if s.sd > 1e-6:
        low, high = scipy.stats.t.interval(
            0.95, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values)
        )
        assert (s.low, s.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)


def test_summary_of_few_values():
    assert stats.summarise([]) == stats.Summary(0, None, None, None, None)
    assert stats.summarise([3.0]) == stats.Summary(1, 3.0, None, None, None)
    assert stats.summarise([0.1] * 3) == stats.Summary(3, 0.1, 0, 0.1, 0.1)


def test_interval_covers_the_mean_in_95_percent_of_samples():
    rng = np.random.default_rng(0)
    samples = rng.normal(10, 2, size=(4000, 4)).tolist()
    covered = sum(s.low <= 10 <= s.high for s in map(stats.summarise, samples))
    # binomial sd is 0.34 %, so four of them
    assert covered / 4000 == pytest.approx(0.95, abs=0.014)


# Student's own sleep data (1908), the paired t-test's first example: t = 4.0621, p = 0.002833.
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_paired_on_students_sleep_data():
    test = stats.paired(DRUG_2, DRUG_1)
    assert test.n == 10
    assert test.difference == pytest.approx(1.58)
    assert test.t == pytest.approx(4.0621, abs=1e-4)
    assert test.p == pytest.approx(0.002833, abs=1e-6)
    assert (test.low, test.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=2, max_size=9))
def test_paired_equals_scipy(pairs):
    a, b = ([x / 10 for x in side] for side in zip(*pairs, strict=True))
    test = stats.paired(a, b)
    if len({x - y for x, y in pairs}) == 1:
        return  # no spread: its own tests below
    peer = scipy.stats.ttest_rel(a, b)
    assert test.t == pytest.approx(peer.statistic, rel=1e-6, abs=1e-9)
    assert test.p == pytest.approx(peer.pvalue, rel=1e-6)
    interval = peer.confidence_interval(0.95)
    assert (test.low, test.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


def test_paired_ties_and_no_spread():
    ties = stats.paired([90.1, 80.3], [90.1, 80.3])
    assert (ties.difference, ties.p, ties.low, ties.high) == (0, 1, 0, 0)
    # in floating point these differences are not equal: 90.3 - 90.1 != 5.3 - 5.1
    shifted = stats.paired([90.3, 30.3, 5.3], [90.1, 30.1, 5.1])
    assert shifted.difference == pytest.approx(0.2)
    assert (shifted.sd, shifted.t, shifted.p, shifted.low) == (0, None, None, None)
    one = stats.paired([2.0], [1.0])
    assert (one.n, one.difference, one.p) == (1, 1.0, None)
    assert stats.paired([], []).difference is None
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        stats.paired([1.0, 2.0], [1.0])


def test_holm_by_hand():
    # sorted: .005 x4 = .02, .011 x3 = .033, .02 x2 = .04, .04 x1 = .04
    assert stats.holm([0.02, 0.005, 0.04, 0.011]) == pytest.approx([0.04, 0.02, 0.04, 0.033])
    # a smaller later product is lifted to the one before: .03 x2 = .06 > .04 x1
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []
    assert stats.holm([None, 0.02]) == [None, 0.02]


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values):
    # the procedure as Holm states it, without adjusted p values
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    rejected = set()
    for rank, place in enumerate(order):
        if p_values[place] * (len(p_values) - rank) >= 0.05:
            break
        rejected.add(place)
    adjusted = stats.holm(p_values)
    assert {place for place, p in enumerate(adjusted) if p < 0.05} == rejected


def test_holm_keeps_the_family_error_at_5_percent():
    rng = np.random.default_rng(1)
    base = rng.normal(size=(1500, 5))
    others = rng.normal(size=(1500, 3, 5))
    false = 0
    for reference, family in zip(base.tolist(), others.tolist(), strict=True):
        p = stats.holm([stats.paired(values, reference).p for values in family])
        false += min(p) < 0.05
    assert false / 1500 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)


@pytest.mark.parametrize(
    ("pairs", "effect"),
    # Needed pairs for effect sizes .5 and .8 at 80 % power, two-sided 5 % (Cohen; G*Power: 34, 15).
    [(34, 0.5), (15, 0.8)],
)
def test_smallest_detectable_against_published_sample_sizes(pairs, effect):
    assert stats.smallest_detectable(1.0, pairs) <= effect
    assert stats.smallest_detectable(1.0, pairs - 1) > effect


@pytest.mark.parametrize(("n", "alpha"), [(3, 0.05), (5, 0.05 / 3), (10, 0.05)])
def test_smallest_detectable_is_found_in_80_percent_of_simulations(n, alpha):
    difference = stats.smallest_detectable(0.7, n, alpha)
    samples = np.random.default_rng(2).normal(difference, 0.7, size=(20000, n))
    p = scipy.stats.ttest_1samp(samples, 0, axis=1).pvalue
    assert np.mean(p < alpha) == pytest.approx(0.8, abs=0.012)


def test_smallest_detectable_without_a_test():
    assert stats.smallest_detectable(1.0, 1) is None
    assert stats.smallest_detectable(0.0, 5) is None


def test_smallest_detectable_falls_with_seeds_and_grows_with_tests():
    by_n = [stats.smallest_detectable(1.0, n) for n in range(2, 20)]
    assert by_n == sorted(by_n, reverse=True)
    assert stats.smallest_detectable(1.0, 5, 0.01) > stats.smallest_detectable(1.0, 5, 0.05)


def test_strict_json_survives_every_number():
    rng = random.Random(0)
    value = {"a": [math.inf, -math.inf, rng.random(), None, True, "x"], "b": {"c": (1, 2)}}
    assert strict.encode(value)["a"][:2] == ["inf", "-inf"]
    assert [strict.number(x) for x in strict.encode(value)["a"]] == [
        *value["a"][:3],
        None,
        None,
        None,
    ]
    assert math.isnan(strict.number(strict.encode(math.nan)))
