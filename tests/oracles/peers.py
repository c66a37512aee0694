"""Every optimizer's rule in float64 numpy, written from the equations and not from the package.

A rule is ``rule(theta, g, state, t, **settings) -> theta``: ``t`` counts from 1, ``state`` is a
dict that the rule keeps its own arrays in. ``run`` gives the points that it visits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.oracles import muon as matrices

Array = np.ndarray
Rule = Callable[..., Array]


def run(
    rule: Rule, theta: Array, gradient: Callable[[Array, int], Array], steps: int, **settings: Any
) -> list[Array]:
    """The points after 1, 2, ..., steps. A setting that is a function is called with t."""
    state: dict[str, Any] = {}
    points = []
    theta = np.asarray(theta, dtype=np.float64)
    for t in range(1, steps + 1):
        now = {name: value(t) if callable(value) else value for name, value in settings.items()}
        theta = rule(theta, gradient(theta, t), state, t, **now)
        points.append(theta)
    return points


def scaled(x: Array, p: float, eps: float) -> Array:
    """x / (|x| + eps)^((p-2)/(p-1))"""
    exponent = 1.0 if np.isinf(p) else (p - 2) / (p - 1)
    return x / (np.abs(x) + eps) ** exponent


def sign_sgd(theta, g, state, t, *, lr, weight_decay):
    return (1 - lr * weight_decay) * theta - lr * np.sign(g)


def signum(theta, g, state, t, *, lr, momentum, weight_decay):
    m = state["m"] = momentum * state.get("m", 0 * g) + (1 - momentum) * g
    return (1 - lr * weight_decay) * theta - lr * np.sign(m)


def lion(theta, g, state, t, *, lr, betas, weight_decay):
    m = state.get("m", 0 * g)
    u = np.sign(betas[0] * m + (1 - betas[0]) * g)
    state["m"] = betas[1] * m + (1 - betas[1]) * g
    return (1 - lr * weight_decay) * theta - lr * u


def lion_k(theta, g, state, t, *, lr, betas, p, weight_decay):
    m = state.get("m", 0 * g)
    c = betas[0] * m + (1 - betas[0]) * g
    if np.isinf(p):
        alpha, q = 0.0, 1.0
    else:
        alpha, q = 1 / (p - 1), p / (p - 1)
    norm = np.sum(np.abs(c) ** q) ** (1 / q)
    u = np.sign(c) * np.abs(c) ** alpha / norm**alpha if norm > 0 else 0 * c
    state["m"] = betas[1] * m + (1 - betas[1]) * g
    return theta - lr * u - lr * weight_decay * theta


def gsgd(theta, g, state, t, *, lr, total_steps, weight_decay):
    """The definition itself, without eps."""
    a = min((t - 1) / total_steps, 1.0)
    return (1 - lr * weight_decay) * theta - lr * np.sign(g) * np.abs(g) ** a


def stacey(theta, g, state, t, *, lr, betas, p, tau, dual_lr, mode, weight_decay, eps):
    m = state.get("m", 0 * g)
    z = state.get("z", theta)
    c = betas[0] * m + (1 - betas[0]) * g
    u = scaled(c, p, eps)
    if mode == "p2":
        z = z - dual_lr * c
    else:
        image = np.abs(z) ** (p - 2) * z - dual_lr * c
        z = np.sign(image) * np.abs(image) ** (1 / (p - 1))
    state["z"] = z
    state["m"] = betas[1] * m + (1 - betas[1]) * g
    return (1 - tau - lr * weight_decay) * theta + tau * z - lr * (1 - tau) * u


def power_sgdm(theta, g, state, t, *, lr, momentum, gamma, weight_decay):
    d = np.sign(g) * np.abs(g) ** gamma + weight_decay * theta
    b = state["b"] = momentum * state["b"] + d if "b" in state else d
    return theta - lr * b


def lpsgd(theta, g, state, t, *, lr, p, weight_decay, eps):
    return (1 - lr * weight_decay) * theta - lr * scaled(g, p, eps)


def lpsgdm(theta, g, state, t, *, lr, momentum, p, weight_decay, eps):
    m = state["m"] = momentum * state.get("m", 0 * g) + (1 - momentum) * g
    return (1 - lr * weight_decay) * theta - lr * scaled(m, p, eps)


def power_step(theta, g, state, t, *, lr, momentum, power, weight_decay):
    m = state["m"] = momentum * state.get("m", 0 * g) + g
    return (1 - lr * weight_decay) * theta - lr * np.sign(m) * np.abs(m) ** power


def cautious_adamw(theta, g, state, t, *, lr, betas, eps, weight_decay):
    u = _adam_direction(g, state, t, betas, eps)
    agrees = u * g > 0
    u = np.where(agrees, u, 0) / max(float(np.mean(agrees)), 1e-3)
    return (1 - lr * weight_decay) * theta - lr * u


def soap(theta, g, state, t, *, lr, betas, eps, weight_decay, every):
    """Adam in the eigenbasis of the Gram matrices; the first gradient only measures."""
    if theta.ndim < 2:
        if t == 1:
            return theta
        return adamw(theta, g, state, t - 1, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    x, beta2 = g.reshape(len(g), -1), betas[1]
    grams = state.setdefault("grams", [0.0, 0.0])
    if t > 1:
        left, right = state["bases"]
        m = state["m"] = betas[0] * state.get("m", 0 * x) + (1 - betas[0]) * x
        v = state["v"] = beta2 * state.get("v", 0 * x) + (1 - beta2) * (left.T @ x @ right) ** 2
        size = np.sqrt(v / (1 - beta2 ** (t - 1))) + eps
        turned = (left.T @ m @ right) / (1 - betas[0] ** (t - 1)) / size
        u = (left @ turned @ right.T).reshape(theta.shape)
        theta = (1 - lr * weight_decay) * theta - lr * u
    products = (x @ x.T, x.T @ x)
    grams[:] = [beta2 * gram + (1 - beta2) * new for gram, new in zip(grams, products, strict=True)]
    if t == 1:
        state["bases"] = [np.linalg.eigh(gram)[1][:, ::-1] for gram in grams]
    elif (t - 1) % every == 0:
        for axis, gram in enumerate(grams):
            basis = state["bases"][axis]
            order = np.argsort(-np.einsum("ij,ik,kj->j", basis, gram, basis), kind="stable")
            state["v"] = np.take(state["v"], order, axis)
            state["bases"][axis] = np.linalg.qr(gram @ basis[:, order])[0]
    return theta


def lpmuon(
    theta, g, state, t, *, lr, momentum, p, weight_decay, nesterov, cautious, normalize_rows
):
    """Arrays of two dimensions or more by singular values, others by AdamW's rule."""
    if theta.ndim < 2:
        return adamw(
            theta, g, state, t, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay
        )
    m = state["m"] = momentum * state.get("m", 0 * g) + (1 - momentum) * g
    u = matrices.direction(momentum * m + (1 - momentum) * g if nesterov else m, 1 / (p - 1))
    if normalize_rows:
        squares = np.mean(u**2, axis=1, keepdims=True)
        v = state["v"] = 0.95 * state.get("v", 0 * squares) + 0.05 * squares
        scaled_rows = u / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        u = scaled_rows * np.linalg.norm(u) / np.linalg.norm(scaled_rows)
    if cautious:
        agrees = u * g > 0
        u = np.where(agrees, u, 0) / max(float(np.mean(agrees)), 1e-3)
    return (1 - lr * weight_decay) * theta - lr * u


def muon(theta, g, state, t, *, lr, momentum, weight_decay, nesterov):
    """Jordan et al. (2024) with the scale of Liu et al. (2025); no floor under singular values."""
    if theta.ndim < 2:
        return adamw(
            theta, g, state, t, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay
        )
    m = state["m"] = momentum * state.get("m", 0 * g) + (1 - momentum) * g
    x = momentum * m + (1 - momentum) * g if nesterov else m
    left, _, right = np.linalg.svd(x, full_matrices=False)
    return (1 - lr * weight_decay) * theta - lr * 0.2 * np.sqrt(max(x.shape)) * left @ right


# --- torch's own ----------------------------------------------------------------------------------


def sgd(theta, g, state, t, *, lr, momentum, weight_decay, nesterov=False):
    """torch's SGD: coupled decay, a buffer that sums."""
    return _heavy_ball(theta, g + weight_decay * theta, state, lr, momentum, nesterov)


def sgdw(theta, g, state, t, *, lr, momentum, weight_decay, nesterov=False):
    """The same with decoupled decay: theta shrinks first, as in AdamW."""
    return _heavy_ball((1 - lr * weight_decay) * theta, g, state, lr, momentum, nesterov)


def _heavy_ball(theta, d, state, lr, momentum, nesterov):
    b = state["b"] = momentum * state["b"] + d if "b" in state else d
    return theta - lr * (d + momentum * b if nesterov else b)


def adam(theta, g, state, t, *, lr, betas, eps, weight_decay):
    return theta - lr * _adam_direction(g + weight_decay * theta, state, t, betas, eps)


def adamw(theta, g, state, t, *, lr, betas, eps, weight_decay):
    return (1 - lr * weight_decay) * theta - lr * _adam_direction(g, state, t, betas, eps)


def _adam_direction(g, state, t, betas, eps):
    m = state["m"] = betas[0] * state.get("m", 0 * g) + (1 - betas[0]) * g
    v = state["v"] = betas[1] * state.get("v", 0 * g) + (1 - betas[1]) * g**2
    return m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)


def nadamw(theta, g, state, t, *, lr, betas, eps, weight_decay, momentum_decay):
    """Dozat (2016) with its momentum schedule, and decoupled decay."""

    def mu(k):
        return betas[0] * (1 - 0.96 ** (k * momentum_decay) / 2)

    m = state["m"] = betas[0] * state.get("m", 0 * g) + (1 - betas[0]) * g
    v = state["v"] = betas[1] * state.get("v", 0 * g) + (1 - betas[1]) * g**2
    product = np.prod([mu(k) for k in range(1, t + 1)])
    n = mu(t + 1) * m / (1 - product * mu(t + 1)) + (1 - mu(t)) * g / (1 - product)
    return (1 - lr * weight_decay) * theta - lr * n / (np.sqrt(v / (1 - betas[1] ** t)) + eps)


def adagrad(theta, g, state, t, *, lr, weight_decay, eps):
    g = g + weight_decay * theta
    v = state["v"] = state.get("v", 0 * g) + g**2
    return theta - lr * g / (np.sqrt(v) + eps)


def rmsprop(theta, g, state, t, *, lr, alpha, momentum, weight_decay, eps):
    g = g + weight_decay * theta
    v = state["v"] = alpha * state.get("v", 0 * g) + (1 - alpha) * g**2
    b = state["b"] = momentum * state.get("b", 0 * g) + g / (np.sqrt(v) + eps)
    return theta - lr * b


def cosine_p(p_max: float, total_steps: int) -> Callable[[int], float]:
    """The paper's schedule over steps: p_1 = p_max, ..., p_S = 2."""

    def p(t: int) -> float:
        progress = (min(t, total_steps) - 1) / (total_steps - 1)
        return 2 + (p_max - 2) * (1 + np.cos(np.pi * progress)) / 2

    return p


# --- a problem to run them on ---------------------------------------------------------------------


class Quadratic:
    """f(theta) = sum over tensors of (theta - target)' A (theta - target) / 2 + <noise_t, theta>.

    Each tensor has an anisotropic A of its own; the noise keeps gradients away from zero, where the
    sign of a rounding error would decide.
    """

    shapes = ((3, 4), (5,), ())

    def __init__(self, seed: int = 0, steps: int = 60, scale: float = 1.0) -> None:
        generator = np.random.default_rng(seed)
        self.starts, self.matrices, self.targets, self.noises = [], [], [], []
        for shape in self.shapes:
            size = int(np.prod(shape, dtype=int))
            basis, _ = np.linalg.qr(generator.normal(size=(size, size)))
            self.matrices.append(basis @ np.diag(np.geomspace(0.05, 2, size)) @ basis.T)
            self.targets.append(generator.normal(size=size))
            self.starts.append(generator.normal(size=shape))
            self.noises.append(scale * generator.normal(size=(steps + 1, size)))

    def gradient(self, index: int) -> Callable[[Array, int], Array]:
        """The gradient of tensor ``index``, a function of theta and t."""

        def of(theta: Array, t: int) -> Array:
            flat = self.matrices[index] @ (theta.reshape(-1) - self.targets[index])
            return (flat + self.noises[index][t]).reshape(theta.shape)

        return of

    def run(self, rule: Rule, steps: int, **settings: Any) -> list[list[Array]]:
        """For each tensor the points that the rule visits."""
        return [
            run(rule, start, self.gradient(i), steps, **settings)
            for i, start in enumerate(self.starts)
        ]

    def __iter__(self) -> Iterator[Array]:
        return iter(self.starts)
