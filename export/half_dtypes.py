"""float16 and bfloat16 in a step: which of them occur, and what a manifest says of that."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.extend import core as jcore

HALVES = ("float16", "bfloat16")

NOTE = "computed in float32, each result rounded"
"""What a manifest says of a type that an artefact does not compute in."""


def is_half(dtype: Any) -> bool:
    """Whether a JAX dtype (extended ones such as keys included) is float16 or bfloat16."""
    return str(dtype) in HALVES


def half_dtypes(closed: jcore.ClosedJaxpr) -> list[str]:
    """Return which of the two types occur in a jaxpr or the bodies within it, sorted."""
    found: set[str] = set()
    _collect(closed.jaxpr, found)
    return sorted(found)


def half_details(closed: jcore.ClosedJaxpr, computed_as: str | None = None) -> dict[str, Any]:
    """Return what the manifest says of an artefact with these types: how it has them, and bounds.

    One operation gives XLA's number exactly. XLA leaves out the roundings between the operations
    that it fuses, which is half a unit for each; a GRU of 64 units, the longest such chain that a
    layer has, came to three eps in either type. The bound is four.

    Args:
        closed: The step.
        computed_as: The note on how the artefact computes; None if it has the types themselves.
    """
    found = half_dtypes(closed)
    if not found:
        return {}
    details: dict[str, Any] = {} if computed_as is None else dict.fromkeys(found, computed_as)
    details["parity_bound"] = max(4 * float(jnp.finfo(name).eps) for name in found)
    return details


def _collect(jaxpr: Any, found: set[str]) -> None:
    equations = jaxpr.eqns
    atoms = [*jaxpr.invars, *jaxpr.constvars]
    for equation in equations:
        atoms += [*equation.invars, *equation.outvars]
        for value in equation.params.values():
            for item in value if isinstance(value, list | tuple) else (value,):
                body = item.jaxpr if isinstance(item, jcore.ClosedJaxpr) else item
                if isinstance(body, jcore.Jaxpr):
                    _collect(body, found)
    found |= {str(d) for d in (getattr(atom.aval, "dtype", "") for atom in atoms) if is_half(d)}
