"""Replace calls by what they call.

`jit`, `custom_jvp_call`, `custom_vjp_call`, `remat` and their kin matter for compilation and
differentiation only. An exported step does neither, and the passes that follow see through nothing.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend import core as jcore

from export.module_scopes import has_user_line
from export.passes.rewrite import constants_of, map_sub_jaxprs, rebuild, substituted

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
    outputs = substituted(closed.jaxpr.outvars, substitution)
    return rebuild(closed, equations, outputs, constants)


def _inline_into(
    jaxpr: jcore.Jaxpr,
    substitution: dict[jcore.Var, Any],
    constants: dict[jcore.Var, Any],
    equations: list[jcore.JaxprEqn],
    call: Any,
) -> None:
    """Append the equations of `jaxpr`, renamed by `substitution`, to `equations`."""
    for equation in jaxpr.eqns:
        inputs = substituted(equation.invars, substitution)
        source = _source_seen_from(call, equation)
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
        _inline_into(body, inner, constants, equations, source)
        for variable, result in zip(equation.outvars, body.outvars, strict=True):
            substitution[variable] = substituted([result], inner)[0]


def _source_seen_from(call: Any, equation: jcore.JaxprEqn) -> Any:
    """Return where `equation` comes from: its own place within the place of the call."""
    source = equation.source_info
    if call is None:
        return source
    # A body that JAX traced before, for another caller or itself, has no line of the user in it.
    traceback = source.traceback if has_user_line(source.traceback) else call.traceback
    return source.replace(name_stack=call.name_stack + source.name_stack, traceback=traceback)


def _called(equation: jcore.JaxprEqn) -> tuple[jcore.Jaxpr, dict[jcore.Var, Any]] | None:
    if equation.primitive.name == "call_hi_primitive":
        body: Any = _expanded(equation)
    elif equation.primitive.name in CALLS:
        body = equation.params[CALLS[equation.primitive.name]]
    else:
        return None
    if isinstance(body, jcore.ClosedJaxpr):
        return body.jaxpr, constants_of(body)
    return body, {}


def _expanded(equation: jcore.JaxprEqn) -> Any:
    """Return in primitives what JAX records as one operation of a higher level (from 0.11 on)."""
    primitive: Any = equation.primitive
    avals: list[Any] = [atom.aval for atom in equation.invars]
    given = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return jax.make_jaxpr(lambda *values: primitive.to_lojax(*values, **equation.params))(*given)


def _fresh_like(variable: jcore.Var) -> jcore.Var:
    return jcore.Var(variable.aval)
