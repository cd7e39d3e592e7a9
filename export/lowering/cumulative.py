"""Rules for cumulative operations: each element combined with all before it along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.arithmetic import SAME_BITS, from_ordered, ordered
from export.lowering.registry import RULES, NotLowerable


@RULES.register("cumsum")
def _cumsum(lowering: Any, equation: Any, x: Any) -> Any:
    wide = tf.cast(x, SAME_BITS.get(x.dtype, x.dtype))
    axis, reverse = int(equation.params["axis"]), bool(equation.params["reverse"])
    return tf.cast(tf.cumsum(wide, axis=axis, reverse=reverse), x.dtype)


@RULES.register("cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(lowering: Any, equation: Any, x: Any) -> Any:
    """Combine in log2(length) rounds, over twice the distance in each (Hillis and Steele, 1986)."""
    axis = int(equation.params["axis"])
    length = equation.invars[0].aval.shape[axis]
    if not isinstance(length, int | np.integer):
        raise NotLowerable("cumulative operation along the batch; export with batch_size=N")
    combine = _COMBINE[equation.primitive.name]
    dtype = x.dtype
    by_order = equation.primitive.name in ("cummax", "cummin")
    if by_order:
        x = ordered(x)
    else:
        x = tf.cast(x, tf.int32 if dtype == tf.bool else SAME_BITS.get(dtype, dtype))
    distance = 1
    while distance < length:
        x = _round(x, axis, distance, combine, bool(equation.params["reverse"]))
        distance *= 2
    if by_order:
        return from_ordered(x, dtype)
    return tf.not_equal(x, 0) if dtype == tf.bool else tf.cast(x, dtype)


def _round(x: Any, axis: int, distance: int, combine: Callable[..., Any], reverse: bool) -> Any:
    def part(start: int | None, stop: int | None) -> Any:
        return x[(*([slice(None)] * axis), slice(start, stop))]

    earlier, later = part(None, -distance), part(distance, None)
    if reverse:
        return tf.concat([combine(earlier, later), part(-distance, None)], axis=axis)
    return tf.concat([part(None, distance), combine(earlier, later)], axis=axis)


def _log_add_exp(a: Any, b: Any) -> Any:
    difference = a - b
    # Infinities of one sign have no difference; their sum is what it should be.
    is_nan = tf.math.is_nan(difference)
    apart = tf.where(is_nan, tf.zeros_like(difference), difference)
    return tf.where(is_nan, a + b, tf.maximum(a, b) + tf.math.log1p(tf.exp(-tf.abs(apart))))


_COMBINE: dict[str, Callable[..., Any]] = {
    "cumprod": tf.multiply,
    "cummax": tf.maximum,
    "cummin": tf.minimum,
    "cumlogsumexp": _log_add_exp,
}
