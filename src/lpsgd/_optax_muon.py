"""LPMuon for JAX; `lpsgd.optax` gives it its public name."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lpsgd import _checks as checks
from lpsgd._jax import Scalar, ScalarOrSchedule, check_number, working_dtype
from lpsgd._schatten import CHAIN, FLOOR, POINTS, RMS


class LPMuonState(NamedTuple):
    """The number of updates made so far, momentum, and second moments (of rows for matrices)."""

    count: Any
    momentum: Any
    second: Any


class _Rule(NamedTuple):
    """The numbers of one update."""

    rate: Any
    alpha: Any
    count: Any
    momentum: Any
    betas: tuple[Any, Any]
    eps: Any
    weight_decay: Any
    nesterov: bool
    cautious: bool
    normalize_rows: bool
    exact: bool
    output_axis: int


def lpmuon(
    learning_rate: ScalarOrSchedule,
    momentum: Scalar = 0.95,
    p: ScalarOrSchedule = math.inf,
    weight_decay: Scalar = 0.0,
    *,
    nesterov: bool = True,
    cautious: bool = True,
    normalize_rows: bool = True,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    exact: bool = False,
    matrices: Any = None,
    output_axis: int = -1,
) -> optax.GradientTransformation:
    r"""Steepest descent in the Schatten-p norm on averaged momentum, as :class:`lpsgd.LPMuon`.

    .. math::
        u = 0.2 \sqrt{\max(r, c)}\; U (S/\operatorname{rms} S)^{\alpha} V^T, \qquad
        \alpha = \frac{1}{p-1}

    for arrays of two dimensions or more, AdamW's rule for the rest.

    Args:
        learning_rate: eta, a number or a schedule.
        momentum: the coefficient beta of the average, in [0, 1).
        p: the norm exponent, a number from 2 to inf or a schedule ``count -> p``.
        weight_decay: the decoupled decay lambda.
        nesterov: look ahead, as Muon does.
        cautious: leave out the coordinates in which u and the gradient disagree.
        normalize_rows: divide each row of u by its running root mean square.
        betas: of AdamW's rule; the second is also that of the rows' running mean.
        eps: of AdamW's rule, and of the rows.
        exact: by eigenvalues instead of matrix products (see `lpsgd.LPMuon`).
        matrices: a tree of booleans like the parameters': which arrays go by their singular values.
            None takes all of two dimensions or more; leave out embeddings and the last layer.
        output_axis: the axis of a kernel's outputs, whose slices are the rows: -1 as in Flax, 0 as
            in torch.

    >>> optimizer = lpmuon(0.02)
    >>> weights = {"kernel": jnp.ones((4, 3)), "bias": jnp.zeros(3)}
    >>> state = optimizer.init(weights)
    >>> updates, state = optimizer.update(weights, state, weights)
    >>> weights = optax.apply_updates(weights, updates)
    """
    for check, name, value in (
        (checks.fraction, "momentum", momentum),
        (checks.check_matrix_exponent, "p", p),
        (checks.non_negative, "weight_decay", weight_decay),
        (checks.positive, "eps", eps),
    ):
        check_number(check, name, value)
    checks.fraction_pair("betas", betas)

    def chosen(params: Any) -> Any:
        given = jax.tree.map(lambda x: True, params) if matrices is None else matrices
        return jax.tree.map(lambda x, m: bool(m) and x.ndim >= 2 and x.size > 0, params, given)

    def init(params: Any) -> LPMuonState:
        def second(x: jax.Array, matrix: bool) -> jax.Array:
            dtype = working_dtype(x)
            if not matrix:
                return jnp.zeros_like(x, dtype)
            return jnp.zeros((x.shape[output_axis] if normalize_rows else 0, 1), dtype)

        zeros = jax.tree.map(lambda x: jnp.zeros_like(x, working_dtype(x)), params)
        return LPMuonState(
            jnp.zeros((), jnp.int32), zeros, jax.tree.map(second, params, chosen(params))
        )

    def update(updates: Any, state: LPMuonState, params: Any = None) -> Any:
        if params is None:
            raise ValueError("lpmuon needs the parameters: call update(updates, state, params)")
        now = p(state.count) if callable(p) else p
        rule = _Rule(
            rate=learning_rate(state.count) if callable(learning_rate) else learning_rate,
            alpha=1 / (jnp.asarray(now, float) - 1),
            count=state.count + 1,
            momentum=momentum,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            nesterov=nesterov,
            cautious=cautious,
            normalize_rows=normalize_rows,
            exact=exact,
            output_axis=output_axis,
        )
        tree: Any  # mypy does not know the methods of JAX's tree definitions
        leaves, tree = jax.tree.flatten(params)
        columns = [
            tree.flatten_up_to(part)
            for part in (updates, state.momentum, state.second, chosen(params))
        ]
        moved = [
            (_matrix_step if matrix else _adamw_step)(theta, g, m, v, rule)
            for theta, g, m, v, matrix in zip(leaves, *columns, strict=True)
        ]
        steps, first, second = ([row[i] for row in moved] for i in range(3))
        kept = LPMuonState(
            optax.safe_increment(state.count), tree.unflatten(first), tree.unflatten(second)
        )
        return tree.unflatten(steps), kept

    return optax.GradientTransformation(init, update)


def _step(theta: jax.Array, u: jax.Array, rule: _Rule) -> jax.Array:
    """(1 - eta lambda) theta - eta u, as the difference that optax adds to theta."""
    theta = theta.astype(u.dtype)
    keep = jnp.asarray(1 - rule.rate * rule.weight_decay, u.dtype)
    return theta * keep - jnp.asarray(rule.rate, u.dtype) * u - theta


def _adamw_step(theta: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, rule: _Rule) -> Any:
    beta1, beta2 = rule.betas
    g = g.astype(m.dtype)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    count = rule.count.astype(m.dtype)
    denominator = jnp.sqrt(v / (1 - beta2**count)) + rule.eps
    return _step(theta, m / (1 - beta1**count) / denominator, rule), m, v


def _matrix_step(theta: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, rule: _Rule) -> Any:
    beta = rule.momentum
    g = g.astype(m.dtype)
    m = beta * m + (1 - beta) * g
    x = beta * m + (1 - beta) * g if rule.nesterov else m
    rows, g_rows = (_rows(each, rule.output_axis) for each in (x, g))
    u = _direction(rows, rule.alpha.astype(m.dtype), rule.exact)
    if rule.normalize_rows:
        beta2 = rule.betas[1]
        v = beta2 * v + (1 - beta2) * jnp.mean(u * u, axis=1, keepdims=True)
        corrected = v / (1 - beta2 ** rule.count.astype(m.dtype))
        scaled = u / (jnp.sqrt(corrected) + rule.eps)
        after = jnp.linalg.norm(scaled)
        u = scaled * (jnp.linalg.norm(u) / jnp.where(after > 0, after, 1))
    if rule.cautious:
        agree = (u * g_rows > 0).astype(u.dtype)
        u = u * agree / jnp.maximum(jnp.mean(agree), 1e-3)
    moved = jnp.moveaxis(theta, rule.output_axis, 0)
    u = jnp.moveaxis(u.reshape(moved.shape), 0, rule.output_axis)
    return _step(theta, u, rule), m, v


def _rows(x: jax.Array, output_axis: int) -> jax.Array:
    return jnp.moveaxis(x, output_axis, 0).reshape(x.shape[output_axis], -1)


def _direction(x: jax.Array, alpha: jax.Array, exact: bool) -> jax.Array:
    """0.2 sqrt(max(r, c)) U (S / rms S)^alpha V^T; `lpsgd._schatten` has the reasons."""
    rows, columns = x.shape
    largest = jnp.max(jnp.abs(x))
    x = x / jnp.where(largest > 0, largest, 1)
    rms = jnp.linalg.norm(x) / math.sqrt(min(rows, columns))
    rms = jnp.where(rms > 0, rms, 1)
    x = x if rows <= columns else x.T
    gram = jnp.matmul(x, x.T, precision="highest")
    square = jnp.linalg.norm(gram)
    square = jnp.where(square > 0, square, 1)
    power = _by_eigenvalues if exact else _by_products
    factor = RMS * math.sqrt(max(rows, columns)) * (jnp.sqrt(square) / rms) ** alpha
    u = jnp.matmul(power(gram / square, alpha) * (factor / jnp.sqrt(square)), x)
    return u if rows <= columns else u.T


def _by_eigenvalues(gram: jax.Array, alpha: jax.Array) -> jax.Array:
    values, vectors = jnp.linalg.eigh(gram + FLOOR**2 * jnp.eye(len(gram), dtype=gram.dtype))
    scaled = jnp.maximum(values, FLOOR**2) ** ((alpha - 1) / 2)
    return jnp.matmul(vectors * scaled, vectors.T)


def _by_products(gram: jax.Array, alpha: jax.Array) -> jax.Array:
    weights = _chain_weights(alpha)
    eye = jnp.eye(len(gram), dtype=gram.dtype)
    total, q = eye * weights[0], eye
    for stage, (a, b, c) in enumerate(CHAIN, start=1):
        poly = a * eye + b * gram + c * gram @ gram
        q = poly @ q
        total = total + weights[stage] * q
        gram = poly @ gram @ poly
    return total


def _chain_weights(alpha: jax.Array) -> jax.Array:
    s = jnp.exp(jnp.linspace(math.log(FLOOR / 16), 0, POINTS, dtype=alpha.dtype))
    target = s * (s * s + FLOOR**2) ** ((alpha - 1) / 2)
    iterates = [s]
    for a, b, c in CHAIN:
        y = iterates[-1]
        iterates.append(y * (a + b * y**2 + c * y**4))
    weights, *_ = jnp.linalg.lstsq(jnp.stack(iterates, 1) / target[:, None], jnp.ones_like(s))
    return weights
