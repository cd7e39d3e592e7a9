"""Rules for products of matrices and convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.registry import RULES, NotLowerable


@RULES.register("dot_general")
def _dot_general(lowering: Any, equation: Any, left: Any, right: Any) -> Any:
    (left_contract, right_contract), (left_batch, right_batch) = equation.params[
        "dimension_numbers"
    ]
    aval = equation.outvars[0].aval
    wanted = tf.as_dtype(np.dtype(aval.dtype))
    left, right = tf.cast(left, wanted), tf.cast(right, wanted)
    left_shape, right_shape = (atom.aval.shape for atom in equation.invars)
    left_free = [a for a in range(len(left_shape)) if a not in (*left_contract, *left_batch)]
    right_free = [a for a in range(len(right_shape)) if a not in (*right_contract, *right_batch)]
    # As matrices: [batch..., free, contracted] times [batch..., contracted, free].
    left = _arrange(lowering, left, left_shape, left_batch, left_free, left_contract)
    right = _arrange(lowering, right, right_shape, right_batch, right_contract, right_free)
    product = tf.matmul(left, right)
    if len(left_free) == 1 and len(right_free) == 1:
        return product
    return tf.reshape(product, lowering.shape(aval.shape))


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


@RULES.register("conv_general_dilated")
def _conv_general_dilated(lowering: Any, equation: Any, x: Any, kernel: Any) -> Any:
    params = equation.params
    numbers = params["dimension_numbers"]
    spatial = len(numbers.lhs_spec) - 2
    if params["batch_group_count"] != 1:
        raise NotLowerable("convolution with batch groups")
    if any(dilation != 1 for dilation in params["lhs_dilation"]):
        raise NotLowerable("transposed convolution (lhs_dilation)")
    if spatial not in (1, 2):
        raise NotLowerable(f"convolution over {spatial} axes")
    groups = int(params["feature_group_count"])
    x = tf.transpose(x, [*_places(numbers.lhs_spec, last=1)])
    kernel = tf.transpose(kernel, [*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]])
    x = tf.pad(x, [[0, 0], *([int(a), int(b)] for a, b in params["padding"]), [0, 0]])
    strides = [int(s) for s in params["window_strides"]]
    dilations = [int(d) for d in params["rhs_dilation"]]
    if spatial == 1:
        # A convolution over one axis is one over two of which the first has length 1.
        x, kernel = tf.expand_dims(x, 1), tf.expand_dims(kernel, 0)
        strides, dilations = [1, *strides], [1, *dilations]
    if groups == 1:
        parts = [_convolve(x, kernel, strides, dilations)]
    else:
        parts = [
            _convolve(part, weights, strides, dilations)
            for part, weights in zip(
                tf.split(x, groups, axis=-1), tf.split(kernel, groups, axis=-1), strict=True
            )
        ]
    result = parts[0] if groups == 1 else tf.concat(parts, axis=-1)
    if spatial == 1:
        result = tf.squeeze(result, 1)
    # From batch, spatial..., feature to the layout of the output.
    places = _places(numbers.out_spec, last=1)
    return tf.transpose(result, [int(axis) for axis in np.argsort(places)])


def _places(spec: Any, last: int) -> list[int]:
    """Return the axes of `spec` in the order batch, spatial..., feature."""
    return [int(spec[0]), *(int(axis) for axis in spec[2:]), int(spec[last])]


def _convolve(x: Any, kernel: Any, strides: list[int], dilations: list[int]) -> Any:
    return tf.nn.conv2d(x, kernel, strides, "VALID", dilations=dilations)
