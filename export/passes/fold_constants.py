"""Compute at export what depends on constants only.

Weights and statistics are constants, so a normalizer's standard deviation, a sampler's scale or a
concatenated recurrent kernel cost nothing on the robot. A `cond` whose index is constant becomes
the chosen branch.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend import core as jcore

from export.passes.inline_calls import inline_calls
from export.passes.rewrite import (
    constant_value,
    constants_of,
    is_static_shape,
    rebuild,
    substituted,
)
from export.prng_keys import is_key

# A folded value may not be much larger than what it is computed from: `jnp.zeros((1000, 1000))`
# stays one operation instead of four megabytes in every artefact.
_LARGEST_GROWTH_ELEMENTS = 65_536


def fold_constants(
    closed: jcore.ClosedJaxpr, known: dict[int, Any] | None = None
) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr with constant subexpressions evaluated.

    Args:
        closed: A jaxpr without calls.
        known: Index of an input → its value, for inputs that are constants from now on. They
            remain inputs, unused, so that positions hold.
    """
    constants = constants_of(closed)
    for index, value in (known or {}).items():
        constants[closed.jaxpr.invars[index]] = value
    substitution: dict[jcore.Var, Any] = {}
    equations: list[jcore.JaxprEqn] = []
    debug_info = closed.jaxpr.debug_info.with_unknown_names()
    pending = list(reversed(closed.jaxpr.eqns))
    while pending:
        equation = pending.pop()
        inputs = substituted(equation.invars, substitution)
        equation = equation.replace(invars=inputs)
        branch = _constant_branch(equation, constants)
        if branch is not None:
            pending += reversed(_branch_equations(equation, branch, constants, substitution))
            continue
        values = _evaluate(equation, constants, debug_info)
        if values is None:
            equations.append(equation)
            continue
        for variable, value in zip(equation.outvars, values, strict=True):
            if isinstance(variable, jcore.DropVar):
                continue
            constants[variable] = value
    inputs = closed.jaxpr.invars
    held = dict(constants)
    outputs = substituted(closed.jaxpr.outvars, substitution)
    equations, outputs, held = _separate_inputs(equations, outputs, held, inputs)
    return rebuild(closed, equations, outputs, held)


def _separate_inputs(
    equations: list[jcore.JaxprEqn],
    outputs: list[Any],
    constants: dict[jcore.Var, Any],
    inputs: list[jcore.Var],
) -> tuple[list[jcore.JaxprEqn], list[Any], dict[jcore.Var, Any]]:
    """Give inputs that became constants a constant variable of their own."""
    renamed = {v: jcore.Var(v.aval) for v in inputs if v in constants}
    if not renamed:
        return equations, outputs, constants
    constants = {renamed.get(variable, variable): value for variable, value in constants.items()}
    equations = [
        equation.replace(invars=substituted(equation.invars, renamed)) for equation in equations
    ]
    return equations, substituted(outputs, renamed), constants


def _evaluate(
    equation: jcore.JaxprEqn, constants: dict[jcore.Var, Any], debug_info: Any
) -> list[Any] | None:
    """Return the outputs of `equation` if all it needs is known, else None."""
    values = [constant_value(atom, constants) for atom in equation.invars]
    if any(value is None for value in values) or equation.effects:
        return None
    if equation.primitive.name == "dim_as_value":
        return None
    shapes = [getattr(variable.aval, "shape", ()) for variable in equation.outvars]
    if not all(is_static_shape(shape) for shape in shapes):
        return None
    size_in = sum(int(np.size(value)) for value in values)
    size_out = sum(int(np.prod(shape)) for shape in shapes)
    if size_out > size_in + _LARGEST_GROWTH_ELEMENTS:
        return None
    parameters: list[Any] = [jcore.Var(atom.aval) for atom in equation.invars]
    results = [jcore.Var(variable.aval) for variable in equation.outvars]
    body = jcore.Jaxpr(
        [],
        parameters,
        results,
        [equation.replace(invars=parameters, outvars=results)],
        debug_info=debug_info,
    )
    with jax.ensure_compile_time_eval():
        outputs = jcore.jaxpr_as_fun(jcore.ClosedJaxpr(body, []))(*values)
    return [_to_host(value) for value in outputs]


def _to_host(value: Any) -> Any:
    return value if is_key(value) else np.asarray(value)


def _constant_branch(
    equation: jcore.JaxprEqn, constants: dict[jcore.Var, Any]
) -> jcore.ClosedJaxpr | None:
    if equation.primitive.name != "cond":
        return None
    index: Any = constant_value(equation.invars[0], constants)
    if index is None:
        return None
    branches = equation.params["branches"]
    return branches[int(np.clip(int(index), 0, len(branches) - 1))]


def _branch_equations(
    equation: jcore.JaxprEqn,
    branch: jcore.ClosedJaxpr,
    constants: dict[jcore.Var, Any],
    substitution: dict[jcore.Var, Any],
) -> list[jcore.JaxprEqn]:
    """Return the chosen branch's equations in the caller's variables."""
    branch = inline_calls(branch)
    names: dict[jcore.Var, Any] = dict(zip(branch.jaxpr.invars, equation.invars[1:], strict=True))
    for variable, value in constants_of(branch).items():
        names[variable] = jcore.Var(variable.aval)
        constants[names[variable]] = value
    equations = []
    for inner in branch.jaxpr.eqns:
        inputs = substituted(inner.invars, names)
        outputs = []
        for variable in inner.outvars:
            names[variable] = jcore.Var(variable.aval)
            outputs.append(names[variable])
        source = inner.source_info
        stack = equation.source_info.name_stack + source.name_stack
        equations.append(
            inner.replace(
                invars=inputs, outvars=outputs, source_info=source.replace(name_stack=stack)
            )
        )
    for variable, result in zip(equation.outvars, branch.jaxpr.outvars, strict=True):
        substitution[variable] = substituted([result], names)[0]
    return equations
