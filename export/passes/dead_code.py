"""Find out what the kept outputs need, and drop the rest."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend import core as jcore
from jax.interpreters import partial_eval

from export.passes.rewrite import constants_of, rebuild


def used_inputs(closed: jcore.ClosedJaxpr, used_outputs: Sequence[bool]) -> list[bool]:
    """Return which inputs can influence the outputs marked in `used_outputs`.

    Loops and branches are looked into: a loop carry that feeds no used output does not count.
    """
    _, used = partial_eval.dce_jaxpr(closed.jaxpr, list(used_outputs))
    return list(used)


def remove_dead_code(
    closed: jcore.ClosedJaxpr, used_outputs: Sequence[bool], kept_inputs: Sequence[bool]
) -> jcore.ClosedJaxpr:
    """Return a jaxpr with only the marked outputs and inputs, and what lies between them.

    Args:
        closed: Any closed jaxpr.
        used_outputs: One flag per output.
        kept_inputs: One flag per input; an input may be kept although nothing reads it.

    Raises:
        ValueError: An input that a kept output needs is not kept.
    """
    jaxpr, used = partial_eval.dce_jaxpr(closed.jaxpr, list(used_outputs))
    missing = [i for i, (u, k) in enumerate(zip(used, kept_inputs, strict=True)) if u and not k]
    if missing:
        raise ValueError(f"inputs {missing} are needed by kept outputs but were to be dropped")
    inputs = [v for v, keep in zip(closed.jaxpr.invars, kept_inputs, strict=True) if keep]
    return rebuild(closed, jaxpr.eqns, jaxpr.outvars, constants_of(closed), inputs=inputs)


def without_dead_code(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return the jaxpr with all its inputs and outputs, and only what lies between them."""
    jaxpr = closed.jaxpr
    return remove_dead_code(closed, [True] * len(jaxpr.outvars), [True] * len(jaxpr.invars))
