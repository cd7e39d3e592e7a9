"""An input of booleans that starts rows afresh inside the step itself."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jax import lax

from export.errors import NetworkError
from export.passes import inline_calls
from export.passes.rewrite import with_outputs
from export.step import Step
from serving.manifest import Port

RESET_PORT = Port("reset", [], [], "bool")
"""One boolean for each row: true starts it from the initial carry in this very step."""


def with_reset_input(step: Step) -> Step:
    """Return `step` with `RESET_PORT` after its other inputs.

    Carry that the network keeps over resets goes on as it is.

    Raises:
        NetworkError: No carry would be reset.
    """
    rows = [
        step.initial_carry[port.name] if port.reset == "initial" else None
        for port in step.carry_ports
    ]
    if all(row is None for row in rows):
        raise NetworkError(
            "reset_input=True, but the policy carries nothing that a reset would change; leave "
            "reset_input out"
        )

    def resetting(*inputs: jax.Array) -> list[jax.Array]:
        *given, reset = inputs
        carry = [
            old if row is None else _choose(reset, row, old)
            for row, old in zip(rows, given, strict=False)
        ]
        return step.function()(*carry, *given[len(carry) :])

    specs = step.input_specs()
    reset = jax.ShapeDtypeStruct(specs[0].shape[:1], np.bool_)
    closed = inline_calls(jax.make_jaxpr(resetting)(*specs, reset))
    closed = with_outputs(closed, closed.jaxpr.outvars)
    return dataclasses.replace(step, closed=closed, reset_port=RESET_PORT)


def _choose(reset: jax.Array, row: np.ndarray, old: jax.Array) -> jax.Array:
    """Return `row` where `reset` is true, else `old`."""
    fresh = lax.broadcast_in_dim(jax.numpy.asarray(row), old.shape, tuple(range(1, old.ndim)))
    return lax.select_n(lax.broadcast_in_dim(reset, old.shape, (0,)), old, fresh)
