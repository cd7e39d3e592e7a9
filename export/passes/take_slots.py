"""Mark the reading of one position along an axis as such.

JAX reads `x[:, k]` as a slice of length one whose axis is then dropped. Portable formats have one
operation for both. The marked equation has a primitive of its own that only our rules know.
"""

from __future__ import annotations

from typing import Any

from jax.extend import core as jcore

from export.passes.rewrite import constants_of, is_var, rebuild

take_slot_p = jcore.Primitive("take_slot")
"""`take_slot[axis, index] x`: `x` at one position along an axis, which the result lacks."""


def take_slots(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr with `take_slot` in place of a slice and the squeeze after it."""
    equations: list[Any] = list(closed.jaxpr.eqns)
    producers = {v: i for i, e in enumerate(equations) for v in e.outvars}
    counts: dict[Any, int] = {}
    for equation in equations:
        for atom in equation.invars:
            if is_var(atom):
                counts[atom] = counts.get(atom, 0) + 1
    for index, equation in enumerate(list(equations)):
        if equation.primitive.name not in ("squeeze", "reshape") or len(equation.invars) != 1:
            continue
        cut = equation.invars[0]
        place = producers.get(cut) if is_var(cut) else None
        if place is None or counts[cut] != 1 or any(cut is v for v in closed.jaxpr.outvars):
            continue
        slot = _slot(equations[place], equation)
        if slot is not None:
            axis, position = slot
            equations[index] = equation.replace(
                primitive=take_slot_p,
                params={"axis": axis, "index": position},
                invars=[equations[place].invars[0]],
            )
            equations[place] = None
    return rebuild(
        closed, [e for e in equations if e is not None], closed.jaxpr.outvars, constants_of(closed)
    )


def _slot(cut: Any, drop: Any) -> tuple[int, int] | None:
    """Return axis and position if `cut` takes one position and `drop` drops that axis."""
    if cut is None or cut.primitive.name != "slice":
        return None
    before, after = cut.invars[0].aval.shape, cut.outvars[0].aval.shape
    changed = [a for a in range(len(before)) if before[a] != after[a]]
    if len(changed) != 1 or after[changed[0]] != 1:
        return None
    axis = changed[0]
    if tuple(drop.outvars[0].aval.shape) != tuple(after[:axis]) + tuple(after[axis + 1 :]):
        return None
    return axis, int(cut.params["start_indices"][axis])
