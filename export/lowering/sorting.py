"""Rules for sorting, selecting the largest, and the order that JAX sorts by.

Everything rests on TensorFlow's and ONNX's top-k: of equal elements both put the earlier first, so
one pass sorts stably by one key, and passes from the least significant key to the first sort by
several. JAX sorts NaN behind all numbers and holds -0.0 and 0.0 equal; top-k knows no order for
NaN, so a float becomes two keys, whether it is NaN and what number it is otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.elementwise import WIDER
from export.lowering.registry import RULES, NotLowerable


@RULES.register("sort")
def _sort(lowering: Any, equation: Any, *operands: Any) -> Any:
    axis = int(equation.params["dimension"])
    n_keys = int(equation.params["num_keys"])
    last_axis = [_swap_last(operand, axis) for operand in operands]
    if len(operands) == 1:
        ordered = [_sorted_values(last_axis[0])]
    else:
        keys = [key for operand in last_axis[:n_keys] for key in _keys(operand)]
        order = _argsort(keys)
        ordered = [_take(operand, order) for operand in last_axis]
    return [_swap_last(operand, axis) for operand in ordered]


def _sorted_values(x: Any) -> Any:
    """Sort values that carry nothing along, in one pass."""
    key = _rankable(x)
    count = _length(x)
    if not x.dtype.is_floating:
        return _from_rankable(_complement(_top_k(_complement(key), count)[0]), x.dtype)
    # NaN is sorted as infinity, then put back at the end, where both are.
    is_nan = tf.math.is_nan(key)
    largest, not_a_number = _scalars(key, np.inf, np.nan)
    values = tf.negative(_top_k(tf.negative(tf.where(is_nan, largest, key)), count)[0])
    n_nan = tf.reduce_sum(tf.cast(is_nan, tf.int32), axis=-1, keepdims=True)
    values = tf.where(tf.range(count) >= count - n_nan, not_a_number, values)
    return tf.cast(values, x.dtype)


@RULES.register("top_k")
def _largest(lowering: Any, equation: Any, x: Any) -> Any:
    """Return the k largest, NaN first, and where they were; of equal ones the earlier first.

    Zeros count as equal and every NaN comes first. XLA puts 0.0 before -0.0 and a NaN of negative
    sign last, but ONNX cannot tell the sign of a NaN.
    """
    axis = int(equation.params.get("axis", equation.invars[0].aval.ndim - 1))
    count = lowering.dimension(equation.params["k"])
    x = _swap_last(x, axis)
    *most, last = _keys(x)
    if most:
        order = _take_first(_argsort([*most, last], descending=True), count)
    else:
        order = _top_k(last, count)[1]
    dtype = tf.as_dtype(np.dtype(equation.outvars[1].aval.dtype))
    return [_swap_last(_take(x, order), axis), _swap_last(tf.cast(order, dtype), axis)]


@RULES.register("approx_top_k")
def _approx_top_k(lowering: Any, equation: Any, *inputs: Any) -> Any:
    raise NotLowerable("what it returns depends on the machine; use jax.lax.top_k")


@RULES.register("lt_to", "le_to")
def _compare_in_total_order(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    """Compare as sorting does: NaN behind all numbers.

    JAX emits these in `searchsorted` only, after making zeros and NaNs alike, so their signs do not
    matter here.
    """
    strict = equation.primitive.name == "lt_to"
    if x.dtype == tf.bool:
        x, y = tf.cast(x, tf.int32), tf.cast(y, tf.int32)
    wide = WIDER.get(x.dtype, x.dtype)
    x, y = tf.cast(x, wide), tf.cast(y, wide)
    ordered = tf.less(x, y) if strict else tf.less_equal(x, y)
    if not x.dtype.is_floating:
        return ordered
    y_last = tf.math.is_nan(y)
    if strict:
        y_last = tf.logical_and(y_last, tf.logical_not(tf.math.is_nan(x)))
    return tf.logical_or(ordered, y_last)


def _argsort(keys: Sequence[Any], *, descending: bool = False) -> Any:
    """Return the stable order by several keys along the last axis, the first key deciding first."""
    count = _length(keys[0])
    order = None
    for key in reversed(keys):
        if not descending:
            key = tf.negative(key) if key.dtype.is_floating else _complement(key)
        step = _top_k(key if order is None else _take(key, order), count)[1]
        order = step if order is None else _take(order, step)
    return order


def _keys(x: Any) -> list[Any]:
    """Return what to sort by, in types that every runtime's top-k takes, without NaN."""
    key = _rankable(x)
    if not key.dtype.is_floating:
        return [key]
    is_nan = tf.math.is_nan(key)
    return [tf.cast(is_nan, tf.int32), tf.where(is_nan, _scalars(key, 0)[0], key)]


def _rankable(x: Any) -> Any:
    if x.dtype == tf.bool:
        return tf.cast(x, tf.int32)
    if x.dtype == tf.float16:
        return tf.cast(x, tf.float32)
    if x.dtype == tf.uint64:
        # The signed type of the same bits, its halves exchanged.
        return tf.cast(x, tf.int64) + np.asarray(np.iinfo(np.int64).min)
    return tf.cast(x, WIDER.get(x.dtype, x.dtype))


def _from_rankable(key: Any, dtype: Any) -> Any:
    if dtype == tf.bool:
        return tf.equal(key, 1)
    if dtype == tf.uint64:
        key = key + np.asarray(np.iinfo(np.int64).min)
    return tf.cast(key, dtype)


def _complement(x: Any) -> Any:
    """Turn the order of integers around; unlike the negative, every integer has a complement."""
    return _scalars(x, -1)[0] - x


def _length(x: Any) -> Any:
    return tf.shape(x)[-1] if x.shape[-1] is None else x.shape[-1]


def _top_k(x: Any, count: Any) -> Any:
    return tf.math.top_k(x, k=count, sorted=True)


def _take_first(x: Any, count: Any) -> Any:
    return x[..., :count]


def _take(x: Any, order: Any) -> Any:
    """Return the elements of `x` along the last axis in another order for each row."""
    if x.dtype == tf.bool:
        return tf.equal(_take(tf.cast(x, tf.int32), order), 1)
    last = x.shape.rank - 1
    # tf2onnx takes a negative axis for another than the batches' next one.
    return tf.gather(x, order, axis=last, batch_dims=last)


def _swap_last(x: Any, axis: int) -> Any:
    last = x.shape.rank - 1
    if axis == last:
        return x
    order = list(range(last + 1))
    order[axis], order[last] = last, axis
    return tf.transpose(x, order)


def _scalars(like: Any, *values: int | float) -> list[np.ndarray]:
    return [np.asarray(value, like.dtype.as_numpy_dtype) for value in values]
