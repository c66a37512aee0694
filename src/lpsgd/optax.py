r"""LPSGD, LPSGDM and LPMuon for JAX, as `optax <https://optax.readthedocs.io>`_ transformations.

The rule is the one of :mod:`lpsgd.optimizer`, with x = g (Algorithm 1) or x = m (Algorithm 2):

.. math::
    m_t &= \beta m_{t-1} + (1-\beta) g_t, \qquad m_0 = 0 \\
    u_t &= x_t / (|x_t| + \varepsilon)^{\rho(p_t)}, \qquad \rho(p) = 1 - \frac{1}{p-1} \\
    \theta_{t+1} &= (1 - \eta\lambda) \theta_t - \eta u_t

p is a number or an optax schedule: any ``count -> p`` that JAX can trace. The schedules of lpsgd
are such functions, and ``optax.cosine_decay_schedule(6.0, N - 1, alpha=2 / 6)`` is the same curve
as ``CosineP(6, total_steps=N)``. Nothing branches on the value of p, so a jitted step is compiled
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from lpsgd import _checks as checks
from lpsgd.geometry import NORMALIZATIONS, Normalize

try:
    import jax
    import jax.numpy as jnp
    import optax
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"lpsgd.optax needs the package {missing.name!r}: pip install 'lpsgd[optax]'",
        name=missing.name,
    ) from missing

from lpsgd._jax import Scalar, ScalarOrSchedule, check_number, working_dtype
from lpsgd._optax_muon import LPMuonState, lpmuon

__all__ = ["LPMuonState", "ScaleByLpState", "lpmuon", "lpsgd", "lpsgdm", "scale_by_lp"]

Mask: TypeAlias = "Any | Callable[[Any], Any] | None"


class ScaleByLpState(NamedTuple):
    """The number of updates made so far, which is what a schedule for p is asked with."""

    count: Any  # a 0-d int32 array; tuple.count is what a narrower type would contradict


class _AverageState(NamedTuple):
    momentum: Any


class _DecayedStepState(NamedTuple):
    count: Any


def scale_by_lp(
    p: ScalarOrSchedule = 6.0, eps: Scalar = 1e-8, *, normalize: Normalize = None
) -> optax.GradientTransformation:
    r"""Scale every coordinate by its own size: :math:`u = x / (|x| + \varepsilon)^{\rho(p)}`.

    Half-precision updates come out in float32, so that the parameter is rounded once.

    Args:
        p: the norm exponent, a number from 2 to inf or a schedule ``count -> p``.
        eps: the constant epsilon > 0 that keeps the scaling finite at zero.
        normalize: ``None``, ``"dual"`` or ``"rms"``, as in :class:`lpsgd.LPSGDM`.

    >>> scaling = scale_by_lp(p=3.0)
    >>> gradient = jnp.array([4.0, -9.0, 0.0])
    >>> u, state = scaling.update(gradient, scaling.init(gradient))
    >>> [f"{value:.3f}" for value in u]  # alpha = 1/2: the signed square root
    ['2.000', '-3.000', '0.000']
    """
    check_number(checks.check_exponent, "p", p)
    check_number(checks.positive, "eps", eps)
    checks.one_of(*NORMALIZATIONS)("normalize", normalize)

    def init(params: Any) -> ScaleByLpState:
        return ScaleByLpState(count=jnp.zeros((), jnp.int32))

    def update(updates: Any, state: ScaleByLpState, params: Any = None) -> Any:
        now = p(state.count) if callable(p) else p
        scaled = jax.tree.map(lambda x: _direction(x, now, eps, normalize), updates)
        return scaled, ScaleByLpState(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def lpsgd(
    learning_rate: ScalarOrSchedule,
    p: ScalarOrSchedule = 6.0,
    weight_decay: Scalar = 0.0,
    eps: Scalar = 1e-8,
    *,
    normalize: Normalize = None,
    mask: Mask = None,
) -> optax.GradientTransformation:
    """Stochastic l_p-norm steepest descent (Algorithm 1): :func:`lpsgdm` without the average.

    >>> optimizer = lpsgd(0.1, p=float("inf"))
    >>> weights = jnp.array([1.0, 2.0])
    >>> updates, state = optimizer.update(jnp.array([5.0, -0.5]), optimizer.init(weights), weights)
    >>> print(updates)
    [-0.1  0.1]
    """
    check_number(checks.non_negative, "weight_decay", weight_decay)
    no_decay = isinstance(weight_decay, int | float) and weight_decay == 0
    return optax.chain(
        scale_by_lp(p, eps, normalize=normalize),
        optax.scale_by_learning_rate(learning_rate)
        if no_decay
        else _decayed_step(learning_rate, weight_decay, mask),
    )


def lpsgdm(
    learning_rate: ScalarOrSchedule,
    momentum: Scalar = 0.9,
    p: ScalarOrSchedule = 6.0,
    weight_decay: Scalar = 0.0,
    eps: Scalar = 1e-8,
    *,
    normalize: Normalize = None,
    mask: Mask = None,
    state_dtype: Any = None,
) -> optax.GradientTransformation:
    """l_p-norm steepest descent on averaged momentum, with decoupled decay (Algorithm 2).

    Works under ``optax.inject_hyperparams``, which makes every number (p too) a value that can be
    set during training; a callable ``mask`` must then be named in its ``static_args``.

    Args:
        learning_rate: eta, a number or a schedule.
        momentum: the coefficient beta of the average, in [0, 1).
        p: the norm exponent, a number from 2 to inf or a schedule ``count -> p``.
        weight_decay: the decoupled decay lambda.
        eps: the constant epsilon > 0 that keeps the scaling finite at zero.
        normalize: ``None``, ``"dual"`` or ``"rms"``, as in :class:`lpsgd.LPSGDM`.
        mask: which parameters are decayed: a tree of booleans like the parameters' or a function
            that makes one from them. None decays all.
        state_dtype: the dtype of the momentum; None means float32 for half-precision parameters,
            else the parameter's own. It is rounded to nearest, not stochastically as in torch.

    >>> optimizer = lpsgdm(0.1, p=optax.cosine_decay_schedule(6.0, 99, alpha=2 / 6))
    >>> weights = jnp.array([1.0, 2.0])
    >>> state = optimizer.init(weights)
    >>> updates, state = optimizer.update(weights, state, weights)
    >>> weights = optax.apply_updates(weights, updates)
    """
    check_number(checks.fraction, "momentum", momentum)
    return optax.chain(
        _average(momentum, state_dtype),
        lpsgd(learning_rate, p, weight_decay, eps, normalize=normalize, mask=mask),
    )


def _average(momentum: Scalar, state_dtype: Any) -> optax.GradientTransformation:
    """m_t = beta m_{t-1} + (1 - beta) g_t, kept in ``state_dtype`` and handed on unrounded."""

    def init(params: Any) -> _AverageState:
        return _AverageState(
            jax.tree.map(lambda x: jnp.zeros_like(x, state_dtype or working_dtype(x)), params)
        )

    def update(updates: Any, state: _AverageState, params: Any = None) -> Any:
        def average(g: jax.Array, m: jax.Array) -> jax.Array:
            beta = jnp.asarray(momentum, working_dtype(g))
            return beta * m.astype(working_dtype(g)) + (1 - beta) * g

        averaged = jax.tree.map(average, updates, state.momentum)
        kept = jax.tree.map(lambda m, old: m.astype(old.dtype), averaged, state.momentum)
        return averaged, _AverageState(kept)

    return optax.GradientTransformation(init, update)


def _decayed_step(
    learning_rate: ScalarOrSchedule, weight_decay: Scalar, mask: Mask
) -> optax.GradientTransformation:
    """theta <- (1 - eta lambda) theta - eta u, as the difference that optax adds to theta.

    ``optax.add_decayed_weights`` rounds differently from
    torch, which multiplies by a rounded 1 - eta lambda as is done here.
    """

    def init(params: Any) -> _DecayedStepState:
        return _DecayedStepState(count=jnp.zeros((), jnp.int32))

    def update(updates: Any, state: _DecayedStepState, params: Any = None) -> Any:
        if params is None:
            raise ValueError(
                "weight decay needs the parameters: call update(updates, state, params)"
            )
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        keep = 1 - rate * weight_decay

        def step(theta: jax.Array, u: jax.Array, decayed: Any) -> jax.Array:
            dtype = working_dtype(theta)
            theta = theta.astype(dtype)
            descent = jnp.asarray(rate, dtype) * u
            kept = theta * jnp.asarray(keep, dtype)
            return jnp.where(decayed, kept - descent - theta, -descent)

        moved = jax.tree.map(step, params, updates, _mask_of(params, mask))
        return moved, _DecayedStepState(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def _mask_of(params: Any, mask: Mask) -> Any:
    """True for every parameter that is decayed; as in optax, a mask may be a prefix of the tree."""
    if callable(mask):
        mask = mask(params)
    prefix = True if mask is None else mask
    return jax.tree.map(lambda m, branch: jax.tree.map(lambda _: m, branch), prefix, params)


def _direction(x: jax.Array, p: Scalar, eps: Scalar, normalize: Normalize) -> jax.Array:
    """The direction u for one array, see :func:`lpsgd.geometry.normalized_direction`."""
    if x.size == 0:
        return x
    if jnp.iscomplexobj(x):  # a pair of reals
        pair = _direction(jnp.stack([x.real, x.imag]), p, eps, normalize)
        return jax.lax.complex(pair[0], pair[1])
    x = x.astype(working_dtype(x))
    p = jnp.asarray(p, x.dtype)
    rho = 1 - 1 / (p - 1)
    u = x * (jnp.abs(x) + eps) ** -rho
    if normalize == "dual":
        return u * _norm(x, 1 + 1 / (p - 1)) ** rho
    if normalize == "rms":
        rms = _norm(u, 2) / x.size**0.5
        return u / jnp.maximum(rms, eps / (2 * eps) ** rho)
    return u


def _norm(x: jax.Array, q: Scalar) -> jax.Array:
    """||x||_q = max|x| ||x/max|x|||_q, so that no power leaves the range of the dtype."""
    largest = jnp.max(jnp.abs(x))
    scaled = jnp.abs(x) / jnp.where(largest > 0, largest, 1)
    return largest * jnp.sum(scaled**q) ** (1 / jnp.asarray(q, x.dtype))
