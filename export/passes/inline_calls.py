"""Replace calls by what they call.

`jit`, `custom_jvp_call`, `custom_vjp_call`, `remat` and their kin matter for compilation and
differentiation only. An exported step does neither, and the passes that follow see through nothing.
"""

from __future__ import annotations

from typing import Any

from jax.extend import core as jcore

from export.passes.rewrite import constants_of, is_var, map_sub_jaxprs, rebuild

# Primitive name → parameter that holds the called jaxpr.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "jaxpr",
}


def inline_calls(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr without call primitives, in loop and branch bodies too."""
    constants = constants_of(closed)
    substitution: dict[jcore.Var, Any] = {}
    equations: list[jcore.JaxprEqn] = []
    _inline_into(closed.jaxpr, substitution, constants, equations, None)
    outputs = [_read(atom, substitution) for atom in closed.jaxpr.outvars]
    return rebuild(closed, equations, outputs, constants)


def _inline_into(
    jaxpr: jcore.Jaxpr,
    substitution: dict[jcore.Var, Any],
    constants: dict[jcore.Var, Any],
    equations: list[jcore.JaxprEqn],
    outer_names: Any,
) -> None:
    """Append the equations of `jaxpr`, renamed by `substitution`, to `equations`."""
    for equation in jaxpr.eqns:
        inputs = [_read(atom, substitution) for atom in equation.invars]
        source = equation.source_info
        if outer_names is not None:
            source = source.replace(name_stack=outer_names + source.name_stack)
        called = _called(equation)
        if called is None:
            outputs = [_fresh_like(variable) for variable in equation.outvars]
            substitution.update(zip(equation.outvars, outputs, strict=True))
            renamed = equation.replace(invars=inputs, outvars=outputs, source_info=source)
            equations.append(map_sub_jaxprs(renamed, inline_calls))
            continue
        body, body_constants = called
        # The same body may be called twice, so its variables get a scope of their own.
        inner: dict[jcore.Var, Any] = dict(zip(body.invars, inputs, strict=True))
        for variable, value in body_constants.items():
            inner[variable] = _fresh_like(variable)
            constants[inner[variable]] = value
        _inline_into(body, inner, constants, equations, source.name_stack)
        for variable, result in zip(equation.outvars, body.outvars, strict=True):
            substitution[variable] = _read(result, inner)


def _called(equation: jcore.JaxprEqn) -> tuple[jcore.Jaxpr, dict[jcore.Var, Any]] | None:
    parameter = CALLS.get(equation.primitive.name)
    if parameter is None:
        return None
    body = equation.params[parameter]
    if isinstance(body, jcore.ClosedJaxpr):
        return body.jaxpr, constants_of(body)
    return body, {}


def _fresh_like(variable: jcore.Var) -> jcore.Var:
    return jcore.Var(variable.aval)


def _read(atom: Any, substitution: dict[jcore.Var, Any]) -> Any:
    return substitution.get(atom, atom) if is_var(atom) else atom
