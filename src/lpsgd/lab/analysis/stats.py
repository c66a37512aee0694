"""The statistics of a comparison, as pure functions of numbers.

Seeds are the unit of replication, and every optimizer sees the same seeds (initial weights,
batches, augmentation), so optimizers are compared by the *differences* within a seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from scipy.special import nctdtrinc, stdtr, stdtrit

ALPHA = 0.05
POWER = 0.8
ENOUGH_SEEDS = 5

# Differences of rounded decimals have rounding noise; a spread below this fraction of the values
# is that noise, and a t statistic made of it would be meaningless.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation and 95 % t interval of ``n`` values; None where undefined."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Paired:
    """Mean difference of ``n`` pairs, its 95 % interval and t-test; None where undefined."""

    n: int
    difference: float | None
    sd: float | None
    low: float | None
    high: float | None
    t: float | None
    p: float | None


def t_quantile(df: int, alpha: float = ALPHA) -> float:
    """The t with P(|T| > t) = ``alpha`` for ``df`` degrees of freedom.

    >>> round(t_quantile(4), 3)
    2.776
    """
    return float(stdtrit(df, 1 - alpha / 2))


def summarise(values: Collection[float]) -> Summary:
    """mean ± t_{n-1} · sd / sqrt(n), with the sample standard deviation (n - 1).

    >>> s = summarise([90.0, 91.0, 92.0])
    >>> s.mean, s.sd, round(s.low, 3), round(s.high, 3)
    (91.0, 1.0, 88.516, 93.484)
    """
    n = len(values)
    if n == 0:
        return Summary(0, None, None, None, None)
    mean = statistics.mean(values)  # exact, so that equal values have exactly their mean
    if n == 1:
        return Summary(1, mean, None, None, None)
    sd = statistics.stdev(values)
    half = t_quantile(n - 1) * sd / math.sqrt(n)
    return Summary(n, mean, sd, mean - half, mean + half)


def paired(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """The paired t-test: d = values - reference, t = mean(d) / (sd(d) / sqrt(n)), n - 1 degrees.

    When every pair ties, p is 1. When every pair differs by the same non-zero amount, t would be
    infinite: there is no spread to judge the difference by, so t, p and the interval are None.

    >>> round(paired([3.0, 5.0, 8.0], [1.0, 4.0, 5.0]).p, 4)
    0.0742
    """
    differences = [a - b for a, b in zip(values, reference, strict=True)]
    s = summarise(differences)
    if s.mean is None or s.sd is None:
        return Paired(s.n, s.mean, None, None, None, None, None)
    noise = _ROUNDING * max(map(abs, (*values, *reference)))
    if s.sd > noise:
        t = s.mean / (s.sd / math.sqrt(s.n))
        p = 2 * float(stdtr(s.n - 1, -abs(t)))
        return Paired(s.n, s.mean, s.sd, s.low, s.high, t, p)
    if abs(s.mean) <= noise:
        return Paired(s.n, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    return Paired(s.n, s.mean, 0.0, None, None, None, None)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: p_(i) -> max over j <= i of min(1, (m - j + 1) p_(j)).

    None (a test that could not be made) stays None and does not count towards m.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    made = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    floor = 0.0
    for rank, (p, place) in enumerate(made):
        floor = max(floor, min(1.0, (len(made) - rank) * p))
        adjusted[place] = floor
    return adjusted


def smallest_detectable(
    sd: float, n: int, alpha: float = ALPHA, power: float = POWER
) -> float | None:
    """The true difference that ``n`` pairs would show as significant with probability ``power``.

    With delta = difference / (sd / sqrt(n)) the t statistic is non-central t with n - 1 degrees;
    this is the difference whose delta gives P(T > t_{n-1, 1-alpha/2}) = power. ``sd`` is that of
    the differences. For a family of m tests pass alpha / m, the level of Holm's strictest step.
    None below two pairs and without spread, where no t-test exists.

    >>> round(smallest_detectable(sd=1.0, n=34), 3)
    0.495
    """
    if n < 2 or sd <= 0:
        return None
    delta = float(nctdtrinc(n - 1, 1 - power, t_quantile(n - 1, alpha)))
    return delta * sd / math.sqrt(n)
