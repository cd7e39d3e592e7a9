"""Make one product of several that are summed: `x @ W + y @ V + b` is `[x, y] @ [W; V] + b`.

A population sums a linear map of every source. One product over the joined sources does the same
with far fewer operations; only the order in which its terms are added is another.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend import core as jcore

from export.passes.rewrite import column_range, constants_of, is_layer, is_var, rebuild

_SUMS = ("add", "add_any")


def merge_linear_maps(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr where sums over products `[batch, n] @ [n, m]` are one product."""
    constants = constants_of(closed)
    equations = list(closed.jaxpr.eqns)
    readers = _reader_counts(closed)
    producers = {
        variable: index for index, equation in enumerate(equations) for variable in equation.outvars
    }
    replaced: dict[int, list[jcore.JaxprEqn]] = {}
    absorbed: set[int] = set()
    # From the end, so that a sum is met before the sums inside it.
    for index in range(len(equations) - 1, -1, -1):
        if index in absorbed or equations[index].primitive.name not in _SUMS:
            continue
        terms, inner = _terms(index, equations, producers, readers)
        products = [t for t in terms if _is_product(t, equations, producers, readers, constants)]
        if len(products) < 2:
            continue
        absorbed |= inner | {producers[t] for t in products}
        others = [t for t in terms if not any(t is p for p in products)]
        layers = _in_order([equations[producers[t]] for t in products], equations, producers)
        replaced[index] = _merged(equations[index], layers, others, constants)
    result: list[jcore.JaxprEqn] = []
    for index, equation in enumerate(equations):
        if index in replaced:
            result += replaced[index]
        elif index not in absorbed:
            result.append(equation)
    return rebuild(closed, result, closed.jaxpr.outvars, constants)


def _reader_counts(closed: jcore.ClosedJaxpr) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    atoms = [atom for equation in closed.jaxpr.eqns for atom in equation.invars]
    for atom in [*atoms, *closed.jaxpr.outvars]:
        if is_var(atom):
            counts[atom] = counts.get(atom, 0) + 1
    return counts


def _terms(
    index: int, equations: list[Any], producers: dict[Any, int], readers: dict[Any, int]
) -> tuple[list[Any], set[int]]:
    """Return what the sum at `index` adds up, and which equations inside it are sums of its own."""
    output = equations[index].outvars[0].aval
    terms: list[Any] = []
    inner: set[int] = set()
    pending = list(reversed(equations[index].invars))
    while pending:
        atom = pending.pop()
        place = producers.get(atom) if is_var(atom) else None
        is_inner_sum = (
            place is not None
            and equations[place].primitive.name in _SUMS
            and readers[atom] == 1
            and atom.aval.shape == output.shape
        )
        if place is not None and is_inner_sum:
            inner.add(place)
            pending += reversed(equations[place].invars)
        else:
            terms.append(atom)
    return terms, inner


def _is_product(
    term: Any, equations: list[Any], producers: dict[Any, int], readers: dict[Any, int], known: Any
) -> bool:
    place = producers.get(term) if is_var(term) else None
    if place is None or readers[term] != 1:
        return False
    equation = equations[place]
    dtypes = {str(atom.aval.dtype) for atom in (*equation.invars, term)}
    # Sums of short integers may not fit, and different dtypes cannot be joined.
    return (
        is_layer(equation, known)
        and len(equation.invars[0].aval.shape) == 2
        and len(dtypes) == 1
        and jnp.issubdtype(term.aval.dtype, jnp.floating)
    )


def _in_order(layers: list[Any], equations: list[Any], producers: dict[Any, int]) -> list[Any]:
    """Put layers that read ranges of columns of one array next to each other, from the left.

    Neighbouring ranges are then read as one.
    """
    sources: list[Any] = []
    places = []
    for layer in layers:
        value = layer.invars[0]
        cut = equations[producers[value]] if value in producers else None
        span = column_range(cut)
        source = value if cut is None or span is None else cut.invars[0]
        known = [index for index, other in enumerate(sources) if other is source]
        if not known:
            sources.append(source)
        places.append((known[0] if known else len(sources) - 1, span or (0, 0)))
    return [layer for _, layer in sorted(zip(places, layers, strict=True), key=lambda p: p[0])]


def _merged(
    total: jcore.JaxprEqn,
    layers: list[Any],
    others: list[Any],
    constants: dict[Any, Any],
) -> list[jcore.JaxprEqn]:
    """Return the equations that put out what `total` did."""
    inputs, matrices = _joined(layers, constants)
    rows = sum(matrix.shape[0] for matrix in matrices)
    aval: Any = total.outvars[0].aval
    equations = []
    source = inputs[0]
    if len(inputs) > 1:
        batch = source.aval.shape[0]
        source = jcore.Var(ShapedArray((batch, rows), inputs[0].aval.dtype))
        equations.append(
            total.replace(
                primitive=lax.concatenate_p,
                params={"dimension": 1},
                invars=inputs,
                outvars=[source],
            )
        )
    weights = jcore.Var(ShapedArray((rows, matrices[0].shape[1]), aval.dtype))
    constants[weights] = np.concatenate(matrices, axis=0)
    results = [jcore.Var(total.outvars[0].aval) for _ in others] + [total.outvars[0]]
    equations.append(layers[0].replace(invars=[source, weights], outvars=[results[0]]))
    for position, term in enumerate(_constants_first(others, constants)):
        equations.append(
            total.replace(invars=[results[position], term], outvars=[results[position + 1]])
        )
    return equations


def _joined(layers: list[Any], constants: dict[Any, Any]) -> tuple[list[Any], list[np.ndarray]]:
    """Return the distinct inputs of the products with their matrices; equal inputs share one."""
    inputs: list[Any] = []
    matrices: list[np.ndarray] = []
    for layer in layers:
        value, matrix = layer.invars[0], np.asarray(constants[layer.invars[1]])
        same = [i for i, other in enumerate(inputs) if other is value]
        if same:
            matrices[same[0]] = matrices[same[0]] + matrix
        else:
            inputs.append(value)
            matrices.append(matrix)
    return inputs, matrices


def _constants_first(terms: list[Any], constants: dict[Any, Any]) -> list[Any]:
    """Put biases next to the product, where runtimes fuse them with it."""
    known = [term for term in terms if not is_var(term) or term in constants]
    return known + [term for term in terms if is_var(term) and term not in constants]
