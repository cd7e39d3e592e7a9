"""Move a constant scale of a layer's input into the layer's weights.

A normalizer divides by a constant standard deviation and a layer multiplies by a constant matrix;
one constant matrix does both. The mean is left alone: `x - mean` is exact for close numbers, where
`x @ W - mean @ W` would cancel badly for large offsets.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jcore

from export.passes.rewrite import constants_of, is_layer, is_var, rebuild


def fold_scales(closed: jcore.ClosedJaxpr) -> jcore.ClosedJaxpr:
    """Return an equal jaxpr where `(x * s) @ W` and `(x / s) @ W` are `x @ W'`.

    Applies where every reader of the scaled value is a product with a constant matrix over its last
    axis. The product's terms are the same numbers rounded once less or once more.
    """
    constants = constants_of(closed)
    equations: list[Any] = list(closed.jaxpr.eqns)
    outputs = list(closed.jaxpr.outvars)
    for index, equation in enumerate(equations):
        scale = _scale_of(equation, constants)
        if scale is None:
            continue
        value, factors = scale
        scaled = equation.outvars[0]
        readers = [i for i, e in enumerate(equations) if e and any(a is scaled for a in e.invars)]
        if any(a is scaled for a in outputs) or not readers:
            continue
        layers = [equations[i] for i in readers]
        if not all(is_layer(e, constants) and e.invars[0] is scaled for e in layers):
            continue
        matrices = [_scaled(constants[layer.invars[1]], factors) for layer in layers]
        if any(matrix is None for matrix in matrices):
            continue
        for reader, layer, scaled_matrix in zip(readers, layers, matrices, strict=True):
            matrix: Any = layer.invars[1].aval
            folded = jcore.Var(ShapedArray(matrix.shape, matrix.dtype))
            constants[folded] = scaled_matrix
            equations[reader] = layer.replace(invars=[value, folded])
        equations[index] = None
    return rebuild(closed, [e for e in equations if e is not None], outputs, constants)


def _scaled(matrix: Any, factors: np.ndarray) -> np.ndarray | None:
    """Return the scaled matrix, or None if its dtype cannot hold it to full precision."""
    # In double precision, so that the weights are rounded once.
    product = np.asarray(matrix, np.float64) * factors[:, None]
    dtype = np.asarray(matrix).dtype
    with np.errstate(over="ignore", under="ignore"):
        rounded = product.astype(dtype)
    error = np.abs(rounded.astype(np.float64) - product)
    exact_enough = error <= float(jnp.finfo(dtype).eps) * np.abs(product)
    return rounded if np.all(exact_enough) else None


def _scale_of(equation: Any, constants: dict[Any, Any]) -> tuple[Any, np.ndarray] | None:
    """Return what `equation` scales and by how much per column, if it does."""
    if equation is None or equation.primitive.name not in ("mul", "div"):
        return None
    left, right = equation.invars
    if equation.primitive.name == "mul" and _known(left, constants) is not None:
        left, right = right, left
    values = _known(right, constants)
    if values is None or not is_var(left) or left in constants:
        return None
    if left.aval.shape != equation.outvars[0].aval.shape or left.aval.dtype.kind != "f":
        return None
    columns = left.aval.shape[-1] if left.aval.shape else 0
    if not isinstance(columns, int) or np.size(values) not in (1, columns):
        return None
    if np.ndim(values) and np.shape(values)[-1] not in (1, columns):
        return None
    factors = np.broadcast_to(np.asarray(values, np.float64).reshape(-1), (columns,))
    if equation.primitive.name == "div":
        if not np.all(factors != 0):
            return None
        factors = 1.0 / factors
    return (left, factors) if np.all(np.isfinite(factors)) else None


def _known(atom: Any, constants: dict[Any, Any]) -> Any:
    return constants.get(atom) if is_var(atom) else atom.val
