"""Rules for convolutions over any number of axes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.elementwise import WIDER
from export.lowering.half_precision import computed_dtype
from export.lowering.registry import RULES, NotLowerable
from export.lowering.sliding import dilate, pad, window_slice


@RULES.register("conv_general_dilated")
def _conv_general_dilated(lowering: Any, equation: Any, x: Any, kernel: Any) -> Any:
    params = equation.params
    numbers = params["dimension_numbers"]
    result_dtype = computed_dtype(equation.outvars[0].aval.dtype)
    between = _product_dtype(result_dtype)
    x, kernel = tf.cast(x, between), tf.cast(kernel, between)
    # Both with the features last: [batch, spatial..., in] and [spatial..., in per group, out].
    x = tf.transpose(x, _places(numbers.lhs_spec))
    kernel = tf.transpose(kernel, [*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]])
    sizes = [equation.invars[0].aval.shape[axis] for axis in numbers.lhs_spec[2:]]
    if not all(isinstance(size, int) for size in sizes):
        raise NotLowerable("a convolution over the batch axis")
    x = dilate(lowering, x, [1, *(int(d) for d in params["lhs_dilation"]), 1])
    padding = [(int(low), int(high)) for low, high in params["padding"]]
    x = pad(x, [(0, 0), *padding, (0, 0)], 0)
    strides = [int(stride) for stride in params["window_strides"]]
    dilations = [int(dilation) for dilation in params["rhs_dilation"]]
    batch_groups = int(params["batch_group_count"])
    groups = int(params["feature_group_count"])
    if batch_groups > 1:
        if not isinstance(equation.invars[0].aval.shape[numbers.lhs_spec[0]], int):
            raise NotLowerable("a convolution with groups of the batch, of any size")
        inputs, groups = tf.split(x, batch_groups, axis=0), batch_groups
    else:
        inputs = tf.split(x, groups, axis=-1) if groups > 1 else [x]
    kernels = tf.split(kernel, groups, axis=-1) if groups > 1 else [kernel]
    if _is_depthwise(kernel, groups, batch_groups, strides, dilations, between):
        result = _depthwise(x, kernel, groups, strides, dilations)
    else:
        parts = [
            _convolve(part, weights, strides, dilations)
            for part, weights in zip(inputs, kernels, strict=True)
        ]
        result = parts[0] if groups == 1 else tf.concat(parts, axis=-1)
    # From batch, spatial..., feature to the layout of the output.
    places = _places(numbers.out_spec)
    result = tf.transpose(result, [int(axis) for axis in np.argsort(places)])
    return tf.cast(result, result_dtype)


def _product_dtype(dtype: Any) -> Any:
    """Return what sums of products are computed in; modulo the range it is the same."""
    return tf.int64 if dtype == tf.uint64 else WIDER.get(dtype, dtype)


def _places(spec: Any) -> list[int]:
    """Return the axes of `spec` in the order batch, spatial..., feature."""
    return [int(spec[0]), *(int(axis) for axis in spec[2:]), int(spec[1])]


def _is_depthwise(
    kernel: Any,
    groups: int,
    batch_groups: int,
    strides: Sequence[int],
    dilations: Sequence[int],
    dtype: Any,
) -> bool:
    """Whether TensorFlow's depthwise convolution, which takes few forms only, fits."""
    return (
        dtype == tf.float32
        and groups > 1
        and batch_groups == 1
        and len(strides) == 2
        and kernel.shape[-2] == 1
        and strides[0] == strides[1]
        and (strides[0] == 1 or max(dilations) == 1)
    )


def _depthwise(x: Any, kernel: Any, groups: int, strides: Any, dilations: Any) -> Any:
    height, width, _, features = kernel.shape.as_list()
    weights = tf.reshape(kernel, [height, width, groups, features // groups])
    return tf.nn.depthwise_conv2d(x, weights, [1, *strides, 1], "VALID", dilations=dilations)


def _convolve(x: Any, kernel: Any, strides: list[int], dilations: list[int]) -> Any:
    """Convolve without padding. Runtimes do that for float32 over one and two axes."""
    spatial = len(strides)
    if x.dtype != tf.float32 or spatial not in (1, 2):
        return _sum_over_taps(x, kernel, strides, dilations)
    if spatial == 1:
        # A convolution over one axis is one over two of which the first has length 1.
        x, kernel = tf.expand_dims(x, 1), tf.expand_dims(kernel, 0)
        strides, dilations = [1, *strides], [1, *dilations]
    result = tf.nn.conv2d(x, kernel, strides, "VALID", dilations=dilations)
    return tf.squeeze(result, 1) if spatial == 1 else result


def _sum_over_taps(x: Any, kernel: Any, strides: list[int], dilations: list[int]) -> Any:
    """Add up one product of matrices for each position in the kernel."""
    lengths = kernel.shape.as_list()[:-2]
    total = None
    for tap in itertools.product(*(range(length) for length in lengths)):
        part = x
        for axis, (place, length) in enumerate(zip(tap, lengths, strict=True), 1):
            step, reach = dilations[axis - 1], (length - 1) * dilations[axis - 1] + 1
            part = window_slice(part, axis, place * step, reach, strides[axis - 1])
        product = tf.linalg.matmul(part, kernel[tap])
        total = product if total is None else total + product
    if total is None:
        raise NotLowerable("a convolution with an empty kernel")
    return total
