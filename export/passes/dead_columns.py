"""Drop columns of a final layer that nothing reads.

A sampler's layer puts out means and raw standard deviations side by side; an exported action needs
the means only, so half of the last matrix can go.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jcore

from export.passes.rewrite import constants_of, is_layer, is_var, rebuild

# Operations that leave columns where they are, with what stands beside the value.
_COLUMNWISE = frozenset({"add", "sub", "mul", "div", "max", "min"})


@dataclasses.dataclass
class _Chain:
    """A product and the columnwise operations on it, in order, up to where it is cut."""

    product: int
    steps: list[int]


def drop_dead_columns(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr whose matrices have no columns that are cut off afterwards.

    Looks for `x @ W`, followed by columnwise operations with constants, of which a `split` or a
    `slice` over the last axis keeps one range of columns and nothing else is read.
    """
    equations = list(closed.jaxpr.eqns)
    constants = constants_of(closed)
    outputs = list(closed.jaxpr.outvars)
    for cut in range(len(equations)):
        kept = _kept_range(equations[cut], equations, outputs)
        if kept is None:
            continue
        chain = _chain_before(equations, cut, constants, outputs)
        if chain is not None:
            _narrow(equations, cut, kept, chain, constants)
    equations = [equation for equation in equations if equation is not None]
    return rebuild(closed, equations, outputs, constants)


def _readers(variable: Any, equations: list[Any], outputs: list[Any]) -> int:
    """Count how often a variable is read."""
    inside = sum(atom is variable for equation in equations if equation for atom in equation.invars)
    return inside + sum(atom is variable for atom in outputs)


def _kept_range(equation: Any, equations: list[Any], outputs: list[Any]) -> tuple[int, int] | None:
    """Return the columns that survive a split or slice, if they are one range and not all."""
    if equation is None or not equation.invars or not is_var(equation.invars[0]):
        return None
    rank = len(getattr(equation.invars[0].aval, "shape", ()))
    if equation.primitive.name == "split" and equation.params["axis"] == rank - 1:
        used = [bool(_readers(v, equations, outputs)) for v in equation.outvars]
        if sum(used) != 1:
            return None
        index = used.index(True)
        sizes = [int(size) for size in equation.params["sizes"]]
        return sum(sizes[:index]), sum(sizes[: index + 1])
    if equation.primitive.name == "slice":
        shape = equation.invars[0].aval.shape
        starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
        strides = equation.params["strides"]
        whole = all(
            start == 0 and limit == size
            for start, limit, size in zip(starts[:-1], limits[:-1], shape[:-1], strict=True)
        )
        if whole and (strides is None or all(stride == 1 for stride in strides)) and shape:
            return int(starts[-1]), int(limits[-1])
    return None


def _chain_before(
    equations: list[Any], cut: int, constants: dict[Any, Any], outputs: list[Any]
) -> _Chain | None:
    """Follow the value that is cut back to a product with a constant matrix."""
    producer = {
        variable: index
        for index, equation in enumerate(equations)
        if equation is not None
        for variable in equation.outvars
    }
    variable = equations[cut].invars[0]
    steps: list[int] = []
    while True:
        if _readers(variable, equations, outputs) != 1 or variable not in producer:
            return None
        index = producer[variable]
        equation = equations[index]
        if equation.primitive.name == "dot_general":
            return _Chain(index, steps[::-1]) if is_layer(equation, constants) else None
        if equation.primitive.name not in _COLUMNWISE:
            return None
        beside = [a for a in equation.invars if not is_var(a) or a in constants]
        if len(beside) != 1:
            return None
        steps.append(index)
        variable = next(a for a in equation.invars if a is not beside[0])


def _narrow(
    equations: list[Any], cut: int, kept: tuple[int, int], chain: _Chain, constants: dict[Any, Any]
) -> None:
    """Rewrite product and operations to the kept columns; the cut itself disappears."""
    first, last = kept
    result = _kept_output(equations[cut], kept)
    product = equations[chain.product]
    matrix = product.invars[1]
    narrow_matrix = _constant(np.asarray(constants[matrix])[:, first:last], matrix, constants)
    variables = {product.outvars[0]: _like(product.outvars[0], last - first)}
    equations[chain.product] = product.replace(
        invars=[product.invars[0], narrow_matrix], outvars=[variables[product.outvars[0]]]
    )
    for index in chain.steps:
        equation = equations[index]
        inputs = []
        for atom in equation.invars:
            if atom in variables if is_var(atom) else False:
                inputs.append(variables[atom])
            elif is_var(atom) and atom.aval.shape and atom.aval.shape[-1] != 1:
                values = np.asarray(constants[atom])[..., first:last]
                inputs.append(_constant(values, atom, constants))
            else:
                inputs.append(atom)
        output = equation.outvars[0]
        variables[output] = _like(output, last - first)
        equations[index] = equation.replace(invars=inputs, outvars=[variables[output]])
    # The last operation puts out what the cut did.
    final = chain.steps[-1] if chain.steps else chain.product
    equations[final] = equations[final].replace(outvars=[result])
    equations[cut] = None


def _kept_output(equation: Any, kept: tuple[int, int]) -> Any:
    if equation.primitive.name == "slice":
        return equation.outvars[0]
    start = 0
    for variable, size in zip(equation.outvars, equation.params["sizes"], strict=True):
        if start == kept[0] and start + int(size) == kept[1]:
            return variable
        start += int(size)
    raise AssertionError("the kept range is one of the split's pieces")


def _like(variable: Any, columns: int) -> jcore.Var:
    aval = variable.aval
    return jcore.Var(ShapedArray((*aval.shape[:-1], columns), aval.dtype))


def _constant(values: np.ndarray, like: Any, constants: dict[Any, Any]) -> jcore.Var:
    variable = jcore.Var(ShapedArray(values.shape, like.aval.dtype))
    constants[variable] = values
    return variable
