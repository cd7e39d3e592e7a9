"""Small tools that every pass over a jaxpr shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
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
