"""Numerical integration of a mechanism's equations of motion."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Float


def runge_kutta_4(
    derivative: Callable[[jax.Array], jax.Array],
    state: Float[jax.Array, " states"],
    *,
    duration_s: float,
    substeps: int,
) -> Float[jax.Array, " states"]:
    """Integrates with the classical fourth-order method in equal substeps.

    Args:
        derivative: Time derivative of a state.
        state: Where to start.
        duration_s: How far to go, in seconds.
        substeps: Into how many parts that is divided.
    """
    step_s = duration_s / substeps

    def substep(_: Any, state: jax.Array) -> jax.Array:
        first = derivative(state)
        second = derivative(state + 0.5 * step_s * first)
        third = derivative(state + 0.5 * step_s * second)
        fourth = derivative(state + step_s * third)
        return state + step_s / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)

    # A loop and not unrolled: XLA would fuse the substeps and compute common parts many times.
    return jax.lax.fori_loop(0, substeps, substep, state)
