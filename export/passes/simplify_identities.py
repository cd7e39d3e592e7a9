"""Drop operations that return one of their inputs: `x + 0`, `x * 1`, a cast to the same dtype, …

Containers write such operations for generality: a population starts its sum from zeros, a sampler
multiplies by a scale of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend import core as jcore

from export.passes.rewrite import constant_value, constants_of, is_var, rebuild, substituted

_PASS_THROUGH = frozenset({"copy", "copy_p", "name", "optimization_barrier", "stop_gradient"})


def simplify_identities(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr without operations that change nothing.

    `x + 0` is dropped for floats too; it differs from `x` only in the sign of a zero.
    """
    constants = constants_of(closed)
    substitution: dict[jcore.Var, Any] = {}
    uniform: dict[jcore.Var, Any] = {}
    equations = []
    for equation in closed.jaxpr.eqns:
        inputs = substituted(equation.invars, substitution)
        equation = equation.replace(invars=inputs)
        _note_uniform(equation, constants, uniform)
        same = _identical_input(equation, constants, uniform)
        if same is None:
            equations.append(equation)
        else:
            substitution[equation.outvars[0]] = same
    outputs = substituted(closed.jaxpr.outvars, substitution)
    return rebuild(closed, equations, outputs, constants)


def _note_uniform(
    equation: jcore.JaxprEqn, constants: dict[jcore.Var, Any], uniform: dict[jcore.Var, Any]
) -> None:
    """Remember arrays that hold one value everywhere, whatever their (symbolic) shape."""
    if equation.primitive.name == "broadcast_in_dim":
        value = _uniform_value(equation.invars[0], constants, uniform)
        if value is not None:
            uniform[equation.outvars[0]] = value


def _uniform_value(atom: Any, constants: dict[jcore.Var, Any], uniform: dict[Any, Any]) -> Any:
    if is_var(atom) and atom in uniform:
        return uniform[atom]
    value = constant_value(atom, constants)
    if value is None or not hasattr(atom.aval, "dtype") or np.size(value) == 0:
        return None
    try:
        array = np.asarray(value)
    except TypeError:
        return None
    first = array.reshape(-1)[0]
    return first if np.all(array == first) else None


def _identical_input(
    equation: jcore.JaxprEqn, constants: dict[jcore.Var, Any], uniform: dict[Any, Any]
) -> Any:
    """Return the input that `equation` returns unchanged, or None."""
    name = equation.primitive.name
    inputs = equation.invars
    output: Any = equation.outvars[0].aval if equation.outvars else None

    def unchanged(atom: Any) -> Any:
        same = atom.aval.shape == output.shape and atom.aval.dtype == output.dtype
        return atom if same and is_var(atom) else None

    if name in _PASS_THROUGH and len(inputs) == 1:
        return unchanged(inputs[0])
    if name in ("reshape", "broadcast_in_dim", "convert_element_type", "squeeze", "expand_dims"):
        return unchanged(inputs[0]) if len(inputs) == 1 else None
    if name == "slice" and not any(stride != 1 for stride in equation.params["strides"] or ()):
        return unchanged(inputs[0])
    if name == "transpose" and tuple(equation.params["permutation"]) == tuple(
        range(len(output.shape))
    ):
        return unchanged(inputs[0])
    if name not in ("add", "add_any", "sub", "mul", "div"):
        return None
    neutral = 0 if name in ("add", "add_any", "sub") else 1
    right = _uniform_value(inputs[1], constants, uniform)
    if right is not None and right == neutral:
        return unchanged(inputs[0])
    if name in ("add", "add_any", "mul"):
        left = _uniform_value(inputs[0], constants, uniform)
        if left is not None and left == neutral:
            return unchanged(inputs[1])
    return None
