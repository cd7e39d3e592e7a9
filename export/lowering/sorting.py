"""Rules for sorting, selecting the largest, and the order that JAX sorts by.

Everything rests on TensorFlow's and ONNX's top-k: of equal elements both put the earlier first, so
one pass sorts stably by one key, and passes from the least significant key to the first sort by
several. JAX sorts NaN behind all numbers and holds -0.0 and 0.0 equal; its `top_k` goes by the sign
of both. Top-k itself knows no order for NaN and no sign of zero. A float32 becomes one float64
key, whose range has room for them beyond infinity and beside zero; a float64 becomes several keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Return the k largest in total order, and where they were; of equal ones the earlier first.

    NaN is larger than infinity, or with a negative sign smaller than minus infinity, and 0.0 larger
    than -0.0. ONNX has no operation that tells the sign of a NaN; there it counts as negative where
    the operand is a negation, as in `jnp.partition`, else as positive.
    """
    axis = int(equation.params.get("axis", equation.invars[0].aval.ndim - 1))
    return _top(lowering, equation, x, axis, _total_order_keys)


@RULES.register("approx_top_k")
def _approximately_largest(lowering: Any, equation: Any, x: Any) -> Any:
    """Return the k largest or smallest exactly, as JAX does on all machines but TPUs."""
    params = equation.params
    if not params["aggregate_to_topk"]:
        raise NotLowerable(
            "without aggregate_to_topk what it returns depends on the machine; leave it True"
        )
    axis = int(params["reduction_dimension"]) % len(equation.invars[0].aval.shape)
    return _top(lowering, equation, x, axis, _keys if params["is_max_k"] else _reversed_keys)


def _top(
    lowering: Any, equation: Any, x: Any, axis: int, keys_of: Callable[[Any], list[Any]]
) -> list[Any]:
    count = lowering.dimension(equation.params["k"])
    x = _swap_last(x, axis)
    *most, last = keys_of(x)
    if most:
        order = _take_first(_argsort([*most, last], descending=True), count)
    else:
        order = _top_k(last, count)[1]
    dtype = tf.as_dtype(np.dtype(equation.outvars[1].aval.dtype))
    return [_swap_last(_take(x, order), axis), _swap_last(tf.cast(order, dtype), axis)]


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
            key = _backwards(key)
        step = _top_k(key if order is None else _take(key, order), count)[1]
        order = step if order is None else _take(order, step)
    return order


def _keys(x: Any) -> list[Any]:
    """Return what to sort by, in types that every runtime's top-k takes, without NaN."""
    key = _rankable(x)
    if not key.dtype.is_floating:
        return [key]
    is_nan = tf.math.is_nan(key)
    if key.dtype == tf.float64:
        return [tf.cast(is_nan, tf.int32), tf.where(is_nan, _scalars(key, 0)[0], key)]
    return [tf.where(is_nan, np.float64(_NAN_KEY), _finite_float64(key))]


def _reversed_keys(x: Any) -> list[Any]:
    return [_backwards(key) for key in _keys(x)]


def _total_order_keys(x: Any) -> list[Any]:
    """Return the keys of the order in which signs of zero and of NaN count."""
    key = _rankable(x)
    if not key.dtype.is_floating:
        return [key]
    is_nan, negative = tf.math.is_nan(key), _sign_is_set(key)
    (zero,) = _scalars(key, 0)
    below_zero = tf.logical_and(tf.equal(key, zero), negative)
    if key.dtype == tf.float64:
        nan_rank = tf.where(is_nan, tf.where(negative, -1, 1), 0)
        number = tf.where(is_nan, zero, key)
        return [nan_rank, number, tf.where(below_zero, -1, 0)]
    number = tf.where(below_zero, np.float64(-_ZERO_KEY), _finite_float64(key))
    nan_key = tf.where(negative, np.float64(-_NAN_KEY), np.float64(_NAN_KEY))
    return [tf.where(is_nan, nan_key, number)]


_INFINITY_KEY, _NAN_KEY = 1e200, 1e300
"""Where infinity and NaN come among float64 keys: beyond every float32."""

_ZERO_KEY = 1e-300
"""Less than any float32 but zero."""


def _finite_float64(x: Any) -> Any:
    end = np.float64(_INFINITY_KEY)
    return tf.minimum(tf.maximum(tf.cast(x, tf.float64), -end), end)


def _sign_is_set(x: Any) -> Any:
    """Return where the bit of the sign is set, also of zeros and NaN."""
    bits = tf.bitcast(x, tf.int64 if x.dtype == tf.float64 else tf.int32)
    return tf.less(bits, _scalars(bits, 0)[0])


def _backwards(key: Any) -> Any:
    return tf.negative(key) if key.dtype.is_floating else _complement(key)


def _rankable(x: Any) -> Any:
    if x.dtype == tf.bool:
        return tf.cast(x, tf.int32)
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
