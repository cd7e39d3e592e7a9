"""Make one operation of several that follow each other and only change an array's shape.

Reading a slot drops an axis, pushing a value adds one; between two such operations nothing moves,
so a chain of them is one reshape, or none where it ends in the shape that it began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core as jcore

from export.passes.dead_code import without_dead_code
from export.passes.rewrite import constants_of, is_var, rebuild, reshaped, substituted


def collapse_reshapes(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr without chains of operations that only change shapes."""
    sources: dict[Any, Any] = {}
    same: dict[Any, Any] = {}
    equations = []
    for equation in closed.jaxpr.eqns:
        equation = equation.replace(invars=substituted(equation.invars, same))
        if not only_reshapes(equation):
            equations.append(equation)
            continue
        value, output = equation.invars[0], equation.outvars[0]
        source = sources.get(value, value)
        if tuple(source.aval.shape) == tuple(output.aval.shape):
            same[output] = source
            continue
        sources[output] = source
        if source is not value:
            equation = reshaped(equation, source, output)
        equations.append(equation)
    outputs = substituted(closed.jaxpr.outvars, same)
    return without_dead_code(rebuild(closed, equations, outputs, constants_of(closed)))


def only_reshapes(equation: jcore.JaxprEqn) -> bool:
    """Return whether `equation` keeps all elements in their order and only changes the shape."""
    name, params = equation.primitive.name, equation.params
    if len(equation.invars) != 1 or not is_var(equation.invars[0]):
        return False
    if name == "reshape":
        return params.get("dimensions") is None
    if name in ("squeeze", "expand_dims"):
        return True
    if name != "broadcast_in_dim":
        return False
    before: Any = equation.invars[0].aval
    return _without_ones(before.shape) == _without_ones(params["shape"])


def _without_ones(shape: Sequence[Any]) -> list[Any]:
    # A symbolic size is never equal to 1 here: the batch may have any.
    return [size for size in shape if not (isinstance(size, int) and size == 1)]
