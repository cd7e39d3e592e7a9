"""Small tools that every pass over a jaxpr shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend import core as jcore

Atom = Any  # jcore.Var | jcore.Literal


def sub_jaxprs(equation: jcore.JaxprEqn) -> list[jcore.ClosedJaxpr | jcore.Jaxpr]:
    """Return every jaxpr that `equation` holds in its parameters."""
    found: list[Any] = []
    for value in equation.params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, jcore.ClosedJaxpr | jcore.Jaxpr):
                found.append(item)
    return found


def map_sub_jaxprs(
    equation: jcore.JaxprEqn, transform: Callable[[jcore.ClosedJaxpr], jcore.ClosedJaxpr]
) -> jcore.JaxprEqn:
    """Return `equation` with `transform` applied to the closed jaxprs in its parameters."""
    params = {}
    changed = False
    for name, value in equation.params.items():
        if isinstance(value, jcore.ClosedJaxpr):
            params[name] = transform(value)
            changed = True
        elif isinstance(value, tuple) and value and isinstance(value[0], jcore.ClosedJaxpr):
            params[name] = tuple(transform(item) for item in value)
            changed = True
        else:
            params[name] = value
    return equation.replace(params=params) if changed else equation


def rebuild(
    closed: jcore.ClosedJaxpr,
    equations: Sequence[jcore.JaxprEqn],
    outputs: Sequence[Atom],
    constants: dict[jcore.Var, Any],
    inputs: Sequence[jcore.Var] | None = None,
) -> jcore.ClosedJaxpr:
    """Return a closed jaxpr with new equations, keeping only the constants that are used."""
    used = {atom for equation in equations for atom in equation.invars if is_var(atom)}
    used |= {atom for atom in outputs if is_var(atom)}
    kept = [(variable, value) for variable, value in constants.items() if variable in used]
    jaxpr = jcore.Jaxpr(
        constvars=[variable for variable, _ in kept],
        invars=list(closed.jaxpr.invars if inputs is None else inputs),
        outvars=list(outputs),
        eqns=list(equations),
        effects=closed.jaxpr.effects,
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return jcore.ClosedJaxpr(jaxpr, [value for _, value in kept])


def is_var(atom: Atom) -> bool:
    """Return whether `atom` is a variable, not a literal."""
    return isinstance(atom, jcore.Var)


def substituted(atoms: Sequence[Atom], replacements: Mapping[jcore.Var, Atom]) -> list[Atom]:
    """Return `atoms` with the variables among them replaced where `replacements` says so."""
    return [replacements.get(atom, atom) if is_var(atom) else atom for atom in atoms]


def constants_of(closed: jcore.ClosedJaxpr) -> dict[jcore.Var, Any]:
    """Return the constant variables of `closed` with their values."""
    return dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))


def is_static_shape(shape: Sequence[Any]) -> bool:
    """Return whether no dimension depends on the batch."""
    return all(isinstance(size, int | np.integer) for size in shape)


def constant_value(atom: Atom, constants: dict[jcore.Var, Any]) -> Any:
    """Return the value of `atom` if it is known at export, else None."""
    if isinstance(atom, jcore.Literal):
        return atom.val
    return constants.get(atom)


def with_outputs(closed: jcore.ClosedJaxpr, outputs: Sequence[Atom]) -> jcore.ClosedJaxpr:
    """Return the jaxpr with other outputs, in a way that does not name them any more."""
    debug_info = closed.jaxpr.debug_info.with_unknown_names()
    jaxpr = closed.jaxpr.replace(outvars=list(outputs), debug_info=debug_info)
    return jcore.ClosedJaxpr(jaxpr, closed.consts)


def reshaped(template: jcore.JaxprEqn, value: Atom, output: jcore.Var) -> jcore.JaxprEqn:
    """Return the equation that gives `value` the shape of `output`.

    Args:
        template: An equation of the same place in the user's code.
        value: Has as many elements as `output`.
        output: A new variable.
    """
    aval: Any = output.aval
    params = {"new_sizes": aval.shape, "dimensions": None, "sharding": None}
    return template.replace(
        primitive=lax.reshape_p, params=params, invars=[value], outvars=[output]
    )


def cut_columns(
    template: jcore.JaxprEqn, matrix: Atom, first: int, end: int
) -> tuple[jcore.JaxprEqn, Any]:
    """Return the equation that takes the columns `first` to `end` of a matrix, and their variable.

    Args:
        template: An equation of the same place in the user's code.
        matrix: `[batch, columns]`.
        first: The first column.
        end: The column after the last.
    """
    aval: Any = matrix.aval
    batch = aval.shape[0]
    columns = jcore.Var(ShapedArray((batch, end - first), aval.dtype))
    params = {"start_indices": (0, first), "limit_indices": (batch, end), "strides": None}
    equation = template.replace(
        primitive=lax.slice_p, params=params, invars=[matrix], outvars=[columns]
    )
    return equation, columns


def slice_range(equation: jcore.JaxprEqn | None, axis: int) -> tuple[int, int] | None:
    """Return first and end if `equation` takes a range along `axis` and all other axes whole."""
    if equation is None or equation.primitive.name != "slice" or not is_var(equation.invars[0]):
        return None
    params, source = equation.params, equation.invars[0]
    aval: Any = source.aval
    starts, limits = params["start_indices"], params["limit_indices"]
    if any(stride != 1 for stride in params["strides"] or ()):
        return None
    for other, size in enumerate(aval.shape):
        if other != axis and (starts[other] != 0 or limits[other] != size):
            return None
    return int(starts[axis]), int(limits[axis])


def column_range(equation: jcore.JaxprEqn | None) -> tuple[int, int] | None:
    """Return first and end if `equation` takes a range of the columns of a matrix."""
    if equation is None or not equation.invars or not is_var(equation.invars[0]):
        return None
    aval: Any = equation.invars[0].aval
    return slice_range(equation, 1) if len(aval.shape) == 2 else None


def is_layer(equation: jcore.JaxprEqn, constants: Mapping[jcore.Var, Any]) -> bool:
    """Return whether `equation` is `x[..., n] @ W[n, m]` with a constant matrix on the right."""
    if equation.primitive.name != "dot_general":
        return False
    left, right = equation.invars
    (left_contract, right_contract), (left_batch, _) = equation.params["dimension_numbers"]
    last: Any = left.aval
    matrix: Any = right.aval
    return (
        is_var(right)
        and right in constants
        and len(matrix.shape) == 2
        and tuple(right_contract) == (0,)
        and not left_batch
        and tuple(left_contract) == (len(last.shape) - 1,)
    )
