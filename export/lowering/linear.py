"""The rule for products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.elementwise import WIDER
from export.lowering.half_precision import computed_dtype
from export.lowering.registry import RULES

_SUMMED_IN = {**WIDER, tf.uint64: tf.int64, tf.bool: tf.int32}


@RULES.register("dot_general")
def _dot_general(lowering: Any, equation: Any, left: Any, right: Any) -> Any:
    (left_contract, right_contract), (left_batch, right_batch) = equation.params[
        "dimension_numbers"
    ]
    aval = equation.outvars[0].aval
    result_dtype = computed_dtype(aval.dtype)
    # Bools are added up as "or"; sums of narrow integers are the same modulo their range.
    wanted = _SUMMED_IN.get(result_dtype, result_dtype)
    left, right = tf.cast(left, wanted), tf.cast(right, wanted)
    left_shape, right_shape = (atom.aval.shape for atom in equation.invars)
    left_free = [a for a in range(len(left_shape)) if a not in (*left_contract, *left_batch)]
    right_free = [a for a in range(len(right_shape)) if a not in (*right_contract, *right_batch)]
    # As matrices: [batch..., free, contracted] times [batch..., contracted, free].
    left = _arrange(lowering, left, left_shape, left_batch, left_free, left_contract)
    right = _arrange(lowering, right, right_shape, right_batch, right_contract, right_free)
    product = lowering.product(left, right)
    if len(left_free) != 1 or len(right_free) != 1:
        product = tf.reshape(product, lowering.shape(aval.shape))
    if result_dtype == tf.bool:
        return tf.not_equal(product, np.int32(0))
    return tf.cast(product, result_dtype)


def _arrange(lowering: Any, x: Any, shape: Any, batch: Any, rows: Any, columns: Any) -> Any:
    """Transpose and reshape `x` to batch axes followed by one row and one column axis."""
    order = [*batch, *rows, *columns]
    if order != list(range(len(shape))):
        x = tf.transpose(x, [int(axis) for axis in order])
    if len(rows) == 1 and len(columns) == 1:
        return x
    return tf.reshape(
        x,
        lowering.shape(
            [
                *(shape[axis] for axis in batch),
                _product(shape[axis] for axis in rows),
                _product(shape[axis] for axis in columns),
            ]
        ),
    )


def _product(sizes: Any) -> Any:
    result: Any = 1
    for size in sizes:
        result = result * size
    return result
