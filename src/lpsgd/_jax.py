"""What the optax transformations share. Importing it loads JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from lpsgd import _checks as checks

Scalar: TypeAlias = "float | jax.Array"
ScalarOrSchedule: TypeAlias = "Scalar | Callable[[Any], Any]"


def check_number(check: checks.Check, name: str, value: Any) -> None:
    """Check what is known now: an array or a schedule has its value when the step runs."""
    if isinstance(value, str | int | float | None):
        check(name, value)


def working_dtype(x: jax.Array) -> Any:
    """At least float32: in float16 an eps of 1e-8 is zero."""
    return jnp.promote_types(x.dtype, jnp.float32)
