"""Rules for `scatter` and its kin: `x.at[i].set(v)`, `add`, `multiply`, `min`, `max`, `apply`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from jax.extend import core as jcore

from export.lowering.arithmetic import SAME_BITS, from_ordered, ordered
from export.lowering.dynamic_slicing import read_window, write_window
from export.lowering.elementwise import select
from export.lowering.half_precision import computed_dtype
from export.lowering.registry import RULES, NotLowerable
from export.lowering.windows import (
    along_batches,
    flat_positions,
    mode_of,
    scatter_windows,
    window_starts,
)


@RULES.register(
    "scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"
)
def _scatter(lowering: Any, equation: Any, operand: Any, indices: Any, updates: Any) -> Any:
    """Combine windows of an operand with updates; where several meet, one after the other.

    A window that does not lie inside is left out as a whole, except in the mode `clip`, which moves
    it. Narrow integers and bools are combined in a wider type.
    """
    combine = _combination(equation)
    dtype = operand.dtype
    # Of uint64 the signed type has the same sums and products, and with halves exchanged the order.
    is_order = dtype == tf.uint64 and combine in ("min", "max")
    wide: Any = _COMBINED_IN.get(dtype, SAME_BITS.get(dtype, dtype))
    operand, updates = (
        ordered(value) if is_order else tf.cast(value, wide) for value in (operand, updates)
    )
    if dtype == tf.bool:
        # On 0 and 1 a sum is an or, which is a maximum, and a product a minimum.
        combine = {"add": "max", "mul": "min"}.get(combine, combine)
    windows = scatter_windows(equation)
    mode = "clip" if mode_of(equation) == "clip" else "check"
    starts, valid = window_starts(lowering, windows, indices, mode)
    arguments = (lowering, equation, windows, operand, updates, starts, valid)
    if len(windows.index_shape) == 1 and combine != "custom":
        result = _one_window(combine, *arguments)
    else:
        result = _many_windows(combine, *arguments)
    if is_order:
        return from_ordered(result, dtype)
    return tf.cast(result, dtype) if dtype != tf.bool else tf.not_equal(result, 0)


_COMBINED_IN = {tf.bool: tf.int32}


def _combination(equation: Any) -> str:
    name = equation.primitive.name
    if name != "scatter":
        return name.rsplit("-", 1)[-1]
    body = equation.params["update_jaxpr"]
    body = body.jaxpr if isinstance(body, jcore.ClosedJaxpr) else body
    return "set" if body is None or body.outvars[0] is body.invars[1] else "custom"


_ELEMENTWISE = {
    "add": tf.add,
    "sub": tf.subtract,
    "mul": tf.multiply,
    "min": tf.minimum,
    "max": tf.maximum,
}


def _one_window(
    combine: str,
    lowering: Any,
    equation: Any,
    windows: Any,
    operand: Any,
    updates: Any,
    starts: dict[int, Any],
    valid: Any,
) -> Any:
    """Cut one window out and put its successor in: `x.at[:, i].set(v)`."""
    window = tf.reshape(updates, lowering.shape(windows.sizes))
    begin = [starts.get(axis, 0) for axis in range(len(windows.sizes))]
    if combine != "set":
        before = read_window(lowering, operand, begin, windows.sizes, windows.operand_shape)
        window = _ELEMENTWISE[combine](before, window)
    written = write_window(lowering, operand, window, begin, windows.sizes, windows.operand_shape)
    return written if valid is None else select(valid, written, operand)


def _many_windows(
    combine: str,
    lowering: Any,
    equation: Any,
    windows: Any,
    operand: Any,
    updates: Any,
    starts: dict[int, Any],
    valid: Any,
) -> Any:
    """Combine element by element in the flattened operand."""
    positions = flat_positions(lowering, windows, starts)
    flat = tf.reshape(operand, [-1])
    count = tf.size(flat)
    if valid is not None:
        # One element more takes what belongs nowhere.
        valid = along_batches(lowering, windows, valid)
        positions = tf.where(valid, positions, count)
        flat = tf.concat([flat, tf.zeros([1], flat.dtype)], axis=0)
    positions, updates = tf.reshape(positions, [-1]), tf.reshape(updates, [-1])
    if combine == "custom":
        flat = _one_after_the_other(lowering, equation, flat, positions, updates)
    elif combine in ("min", "max") and flat.dtype.is_floating:
        flat = _extremum(combine, flat, positions, updates)
    else:
        flat = _COMBINE[combine](flat, positions, updates)
    if valid is not None:
        flat = flat[:count]
    return tf.reshape(flat, lowering.shape(windows.operand_shape))


def _add(flat: Any, positions: Any, updates: Any) -> Any:
    return tf.tensor_scatter_nd_add(flat, positions[:, None], updates)


def _subtract(flat: Any, positions: Any, updates: Any) -> Any:
    return _add(flat, positions, tf.negative(updates))


def _multiply(flat: Any, positions: Any, updates: Any) -> Any:
    # TensorFlow multiplies by segments; the operand itself is each segment's first factor.
    own = tf.range(tf.size(flat))
    return tf.math.unsorted_segment_prod(
        tf.concat([flat, updates], axis=0), tf.concat([own, positions], axis=0), tf.size(flat)
    )


def _set(flat: Any, positions: Any, updates: Any) -> Any:
    return tf.tensor_scatter_nd_update(flat, positions[:, None], updates)


def _minimum(flat: Any, positions: Any, updates: Any) -> Any:
    return tf.tensor_scatter_nd_min(flat, positions[:, None], updates)


def _maximum(flat: Any, positions: Any, updates: Any) -> Any:
    return tf.tensor_scatter_nd_max(flat, positions[:, None], updates)


_COMBINE = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "set": _set,
    "min": _minimum,
    "max": _maximum,
}


def _extremum(combine: str, flat: Any, positions: Any, updates: Any) -> Any:
    """Return minima or maxima that are NaN where one of the numbers is; runtimes lose them."""
    neutral = np.asarray(np.inf if combine == "min" else -np.inf, flat.dtype.as_numpy_dtype)
    bad_flat, bad_updates = tf.math.is_nan(flat), tf.math.is_nan(updates)
    numbers = _COMBINE[combine](
        tf.where(bad_flat, neutral, flat), positions, tf.where(bad_updates, neutral, updates)
    )
    bad = _maximum(tf.cast(bad_flat, tf.int32), positions, tf.cast(bad_updates, tf.int32))
    return tf.where(bad > 0, np.asarray(np.nan, flat.dtype.as_numpy_dtype), numbers)


def _one_after_the_other(
    lowering: Any, equation: Any, flat: Any, positions: Any, updates: Any
) -> Any:
    """Apply any function of old value and update, in order, as `x.at[i].apply(f)` does."""
    body = equation.params["update_jaxpr"]
    if not isinstance(body, jcore.ClosedJaxpr):
        body = jcore.ClosedJaxpr(body, list(equation.params["update_consts"]))
    dtype = computed_dtype(equation.invars[0].aval.dtype)
    if dtype != flat.dtype:
        raise NotLowerable(f"applying a function to elements of {dtype.name}")

    def step(index: Any, values: Any) -> Any:
        place = positions[index]
        (new,) = lowering.run(body, [tf.gather(values, place), updates[index]])
        return index + 1, tf.tensor_scatter_nd_update(values, place[None, None], new[None])

    _, flat = tf.while_loop(
        lambda index, values: index < tf.size(positions),
        step,
        (tf.constant(0), flat),
        shape_invariants=(tf.TensorShape([]), flat.shape),
    )
    return flat
