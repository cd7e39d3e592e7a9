"""Cut an array that is read in many ranges of columns once, instead of once for each range.

Packed delays are read by every population and moved on by one slot, each time as a range of
columns. A range that is only joined with others is joined range by range; what is left are pieces
without overlap, and one `split` gives them all.
"""

from __future__ import annotations

from typing import Any

from jax import lax
from jax.core import ShapedArray
from jax.extend import core as jcore

from export.passes.dead_code import without_dead_code
from export.passes.rewrite import (
    column_range,
    constants_of,
    cut_columns,
    is_var,
    rebuild,
    substituted,
)


def split_slices(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr in which matrices read in several ranges of columns are split once."""
    joined = without_dead_code(_join_neighbours(closed))
    read = [e.invars[0] for e in joined.jaxpr.eqns if column_range(e) is not None]
    for variable in dict.fromkeys(read):
        joined = _split(joined, variable)
    return joined


def _is_row_of_columns(equation: Any) -> bool:
    """Return whether `equation` puts matrices side by side."""
    # JAX gives some axes as integers of NumPy, whose comparison is no bool of Python.
    return equation.primitive.name == "concatenate" and int(equation.params["dimension"]) == 1


def _join_neighbours(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Read as one range what a concatenation puts together from neighbouring ranges."""
    producers = {v: e for e in closed.jaxpr.eqns for v in e.outvars}
    same: dict[Any, Any] = {}
    equations = []
    for equation in closed.jaxpr.eqns:
        equation = equation.replace(invars=substituted(equation.invars, same))
        if not _is_row_of_columns(equation):
            equations.append(equation)
            continue
        parts: list[tuple[Any, Any, Any]] = []
        for atom in equation.invars:
            cut = producers.get(atom) if is_var(atom) else None
            span = column_range(cut)
            source = cut.invars[0] if cut is not None and span is not None else None
            before = parts[-1] if parts else (None, None, None)
            if span and before[2] and before[1] is source and before[2][1] == span[0]:
                parts[-1] = (None, source, (before[2][0], span[1]))
            else:
                parts.append((atom, source, span))
        inputs = []
        for atom, source, span in parts:
            if atom is None:
                cut, atom = cut_columns(equation, source, *span)
                equations.append(cut)
            inputs.append(atom)
        if len(inputs) == 1:
            same[equation.outvars[0]] = inputs[0]
        else:
            equations.append(equation.replace(invars=inputs))
    outputs = substituted(closed.jaxpr.outvars, same)
    return rebuild(closed, equations, outputs, constants_of(closed))


def _split(closed: jcore.ClosedJaxpr, variable: Any) -> jcore.ClosedJaxpr:
    """Replace the slices of `variable` by one split where that makes fewer operations."""
    equations: list[Any] = list(closed.jaxpr.eqns)
    spans: dict[int, tuple[int, int]] = {}
    for index, equation in enumerate(equations):
        span = column_range(equation)
        if span is not None and equation.invars[0] is variable and span[0] < span[1]:
            spans[index] = span
    flexible = {i for i in spans if _only_joined(equations[i].outvars[0], closed)}
    cuts = {edge for place in spans for edge in spans[place]}
    # What goes elsewhere as it is must be one piece; else it keeps its slice and sets no bounds.
    rigid = set(spans) - flexible
    while True:
        # Only ever fewer: two that cut each other both keep their slices.
        rigid = {i for i in rigid if not any(spans[i][0] < c < spans[i][1] for c in cuts)}
        used = flexible | rigid
        remaining = {edge for place in used for edge in spans[place]}
        if remaining == cuts:
            break
        cuts = remaining
    if len(used) < 2:
        return closed
    edges = sorted({0, int(variable.aval.shape[1])} | cuts)
    template = equations[min(used)]
    pieces: list[Any] = [
        jcore.Var(ShapedArray((variable.aval.shape[0], end - first), variable.aval.dtype))
        for first, end in zip(edges, edges[1:], strict=False)
    ]
    of_slice = {
        equations[i].outvars[0]: [
            piece
            for piece, first in zip(pieces, edges, strict=False)
            if spans[i][0] <= first < spans[i][1]
        ]
        for i in used
    }
    split = template.replace(
        primitive=lax.split_p,
        params={"sizes": tuple(p.aval.shape[1] for p in pieces), "axis": 1},
        invars=[variable],
        outvars=pieces,
    )
    # Where the first slice was, the matrix is there.
    equations[min(used)] = split
    kept = [e for i, e in enumerate(equations) if i not in used or e is split]
    result = [_with_pieces(equation, of_slice) for equation in kept]
    outputs = [of_slice[o][0] if is_var(o) and o in of_slice else o for o in closed.jaxpr.outvars]
    return rebuild(closed, result, outputs, constants_of(closed))


def _only_joined(value: Any, closed: jcore.ClosedJaxpr) -> bool:
    if any(value is output for output in closed.jaxpr.outvars):
        return False
    readers = [e for e in closed.jaxpr.eqns if any(value is atom for atom in e.invars)]
    return all(_is_row_of_columns(equation) for equation in readers)


def _with_pieces(equation: Any, of_slice: dict[Any, list[Any]]) -> Any:
    inputs = []
    for atom in equation.invars:
        inputs += of_slice[atom] if is_var(atom) and atom in of_slice else [atom]
    return equation.replace(invars=inputs)
