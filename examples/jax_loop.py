"""Plain JAX: logistic regression on handwritten digits with lpsgd.optax, one compiled step.

python examples/jax_loop.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

from lpsgd.optax import lpsgdm

STEPS, BATCH = 300, 128


def loss_of(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    logits = x @ weights["w"] + weights["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def main(steps: int = STEPS) -> float:
    """Train, and return the final loss over the whole data set."""
    digits = load_digits()
    x, y = jnp.asarray(digits.data / 16), jnp.asarray(digits.target)
    optimizer = lpsgdm(
        optax.cosine_decay_schedule(2e-2, steps),
        p=optax.cosine_decay_schedule(6.0, steps - 1, alpha=2 / 6),  # from 6 down to 2
        weight_decay=0.01,
        mask=lambda weights: jax.tree.map(lambda leaf: leaf.ndim > 1, weights),
    )
    weights = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Any, state: Any, batch: jax.Array) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(weights, x[batch], y[batch])
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    key = jax.random.key(0)
    for number in range(steps):
        batch = jax.random.randint(jax.random.fold_in(key, number), (BATCH,), 0, len(y))
        weights, state, loss = step(weights, state, batch)
        if number % 50 == 0:
            print(f"step {number:4d}   loss {loss:.4f}")
    final = float(loss_of(weights, x, y))
    print(f"at the end  loss {final:.4f}")
    return final


if __name__ == "__main__":
    main()
