"""`lpsgd reproduce theory`: the measurements as tables and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from lpsgd.lab.formatting import percent
from lpsgd.lab.paper.theory import descent, failures, rates
from lpsgd.lab.paper.theory.figures import decay_figure, failures_figure, rates_figure
from lpsgd.lab.paper.theory.problems import one_thread
from lpsgd.lab.report.document import Document, Picture, Table, text

_EXPONENTS = tuple(f"p = {p:g}" for p in descent.EXPONENTS)


def reproduce(
    horizons: Sequence[int], title: str, tell: Callable[[str], None] = lambda text: None
) -> Document:
    """Measure everything and write it down; ``tell`` is told what is measured next."""
    with one_thread():
        document = Document("theory", title)
        _add_smoothness(document)
        tell("descent along trajectories (Lemmas 1 and 2)")
        _add_lemmas(document)
        _add_rates(document, rates.measure_rates(horizons, tell))
        tell("where the assumptions fail")
        _add_failures(document)
        tell("decoupled decay")
        _add_decay(document)
    return document


def _add_smoothness(document: Document) -> None:
    document.add(
        text(
            "**Smoothness.** On a diagonal quadratic the l_p smoothness constant is exact: "
            "L_p = ||λ||_{p/(p-2)} (Hölder). Since ||d||_p falls as p grows, one L that serves the "
            "whole annealing is that of p_max, which is up to d times L_2: the theorems' step size "
            "shrinks by that factor, and the more isotropic the curvature, the more."
        ),
        Table(
            "theory-smoothness",
            "L_p / L_2",
            ("spectrum", "d", *_EXPONENTS),
            [(name, d, *values) for name, d, values in descent.smoothness_table()],
        ),
        text(
            "**Imbalance.** The ratio of two coordinates of the step is "
            "(λ_i|θ_i| / λ_j|θ_j|)^α with α = 1/(p-1)."
        ),
        Table(
            "theory-imbalance",
            "|d_i|/|d_j| for a given ratio of gradients",
            ("λ_i|θ_i| / λ_j|θ_j|", "p = 2", "p = 3", "p = 6", "p = inf"),
            [(ratio, *descent.imbalance(ratio)) for ratio in (10.0, 250.0, 1000.0, 4000.0)],
        ),
    )


def _add_lemmas(document: Document) -> None:
    checks = descent.lemma_checks()
    rows = [
        (c.lemma, c.problem, c.constant, c.steps, c.violations, c.largest_share) for c in checks
    ]
    wrong = [c.violations > 0 for c in checks if c.constant == "L of 2"]
    document.add(
        text(
            "**Lemmas 1 and 2** along real trajectories with gradient noise and p annealed from 6 "
            "to 2. The largest share is how much of the allowance L/2 ||d||_p² the most curved "
            "step used; above 1 the inequality is broken. With L_2 in the place of L_p it is, in "
            f"{sum(wrong)} of {len(wrong)} cases."
        ),
        Table(
            "theory-lemmas",
            "Steps that break the descent inequality",
            ("lemma", "function", "constant", "steps", "broken", "largest share"),
            rows,
        ),
    )


# --- rates -------------------------------------------------------------------------------------


def _add_rates(document: Document, measured: Sequence[rates.Rate]) -> None:
    document.add(
        text(
            "**Theorems 1 and 2** on a function that is not convex, f = Σ a_i x_i²/(1 + x_i²) with "
            f"|f_i''| <= 2a_i, so L_p <= ||2a||_(p/(p-2)); d = 20, noise {rates.NOISE:g} in each "
            f"coordinate, {rates.REPLICATES} replicates. c1, c2, c3 are measured on a pilot run; "
            "then every horizon T is run with the theorem's own step size."
        ),
        text(*(_describe(rate) for rate in measured)),
        Picture(
            "theory-rates",
            "The theorems' bound and the measured mean squared gradient over T (mean of the "
            "replicates; its 95 % interval is narrower than the markers). The bound has slope -1/2 "
            "by construction.",
            rates_figure(measured),
        ),
        Table(
            "theory-rates",
            "Bound and measurement for each horizon, and the share of looked-at steps of the real "
            "run that violate the pilot's constants",
            (
                "theorem",
                "T",
                "step size",
                "bound",
                "measured",
                "95 % low",
                "95 % high",
                "violate c1",
                "violate c2, c3",
            ),
            [
                (
                    rate.theorem,
                    point.horizon,
                    point.lr,
                    point.bound,
                    point.measured.mean,
                    point.measured.low,
                    point.measured.high,
                    point.c1_violated,
                    point.c23_violated,
                )
                for rate in measured
                for point in rate.points
            ],
        ),
        text(
            "The assumptions on the gradient noise (unbiased, bounded variance) enter neither "
            "proof: each proof uses the smoothness, the lower bound of f and the assumption on the "
            "transformed direction (c1, c2, c3), which takes the place of both."
        ),
    )


def _describe(rate: rates.Rate) -> str:
    c, slope = rate.constants, rate.slope
    low, high = slope.low or math.nan, slope.high or math.nan
    where = "outside" if not low <= -0.5 <= high else "inside"
    holds = (
        f"c1 = {c.c1:.3g} holds at every step of the pilot"
        if c.pointwise
        else (
            "no positive c1 holds at every step of the pilot (the lowest "
            f"E⟨∇f, v⟩/|∇f|² is {c.lowest_c1:.3g}); c1 = {c.c1:.3g} is that of the sums over the "
            "run, which is all that the proof needs"
        )
    )
    below = all((point.measured.mean or 0) <= point.bound for point in rate.points)
    return (
        f"{rate.theorem}: {holds}; c2 = {c.c2:.3g}, c3 = {c.c3:.3g}, L = {rate.smoothness:.3g}. "
        f"The measured mean is {'below the bound at every T' if below else 'ABOVE the bound'}; "
        f"fitted slope {slope.mean:.3f}, 95 % interval {low:.3f} to {high:.3f}, "
        f"-1/2 lies {where} it."
    )


# --- failures ----------------------------------------------------------------------------------


def _add_failures(document: Document) -> None:
    scales = 10.0 ** np.linspace(-2, 4, 25)
    aligned = failures.alignment_by_scale(scales)
    cosine, skew = failures.overshoot(), failures.skewed_noise()
    document.add(
        text(
            "**Where the assumptions fail.** Assumption 5 requires E⟨∇f, u⟩ >= c1 |∇f|² everywhere:"
        ),
        text(
            "Large gradients: ⟨g, u⟩ grows as |g|^(1+α), slower than |g|²; the ratio falls as "
            "|g|^(-ρ), so that no c1 > 0 serves an unbounded region once p > 2.",
            "Momentum: after an overshoot the buffer still points where the minimum was. On a "
            f"quadratic without noise {percent(float((cosine < 0).mean()))} of LPSGDM's steps have "
            "⟨∇f, v⟩ < 0, so no positive c̃1 exists.",
            "Skewed noise with mean 0 and bounded variance (+9 with probability 0.1, else -1) on "
            "f = x²/2 at x = 1/2: E⟨∇f, u⟩ = "
            + ", ".join(f"{value:+.2f} at p = {p:g}" for p, value in skew.alignment.items())
            + f". With p = 6 throughout LPSGD settles at x = {skew.constant[-1]:.2f} (E u vanishes "
            f"at {skew.settles_at:.2f}); annealed to p = 2 it ends at {skew.annealed[-1]:.2f}.",
        ),
        Picture(
            "theory-failures",
            "(a) Alignment against the scale of the gradient. (b) The angle between gradient and "
            "LPSGDM's step on a quadratic: below 0 the step goes uphill. (c) The mean of 200 runs "
            "of LPSGD under skewed noise on x²/2, whose minimum is 0.",
            failures_figure(scales, aligned, cosine, skew),
        ),
        Table(
            "theory-alignment",
            "alignment against the scale of the gradient",
            ("scale", *(f"p = {p:g}" for p in aligned)),
            [
                (float(scale), *(float(values[place]) for values in aligned.values()))
                for place, scale in enumerate(scales)
            ],
            shown=False,
        ),
        Table(
            "theory-overshoot",
            "cosine between gradient and step of LPSGDM",
            ("step", "cosine"),
            list(enumerate(map(float, cosine))),
            shown=False,
        ),
        Table(
            "theory-skew",
            "mean position under skewed noise",
            ("step", "p = 6", "p annealed from 6 to 2"),
            [
                (step, float(skew.constant[step]), float(skew.annealed[step]))
                for step in range(0, len(skew.constant), 10)
            ],
            shown=False,
        ),
    )


# --- decay -------------------------------------------------------------------------------------


def _add_decay(document: Document) -> None:
    found = failures.decoupled_decay()
    document.add(
        text(
            "**Decoupled decay** (not part of the theorems): θ ← (1-ηλ)θ - ηv keeps every |θ_i| "
            "below max(|θ_0|, sup|v|/λ), whatever the function."
        ),
        Picture(
            "theory-decay",
            "The norm of the parameters under LPSGDM on noisy wells, for four weight decays λ.",
            decay_figure(found),
        ),
        Table(
            "theory-decay",
            "Norm of the parameters after the run, and the largest entry beside its bound",
            ("λ", "norm after one step", "norm at the end", "largest |θ_i|", "bound"),
            [
                (d.weight_decay, float(d.norms[0]), float(d.norms[-1]), d.largest_entry, d.bound)
                for d in found
            ],
        ),
    )
