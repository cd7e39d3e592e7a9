"""Rules for reductions, cumulative operations and arg-reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.elementwise import WIDER
from export.lowering.registry import RULES, NotLowerable

_REDUCTIONS = {
    "reduce_sum": tf.reduce_sum,
    "reduce_max": tf.reduce_max,
    "reduce_min": tf.reduce_min,
    "reduce_prod": tf.reduce_prod,
}


@RULES.register(*_REDUCTIONS, "reduce_and", "reduce_or")
def _reduce(lowering: Any, equation: Any, x: Any) -> Any:
    name = equation.primitive.name
    axes = [int(axis) for axis in equation.params["axes"]]
    if x.dtype == tf.bool:
        # As integers, since ONNX reduces numbers only.
        reduce = tf.reduce_min if name in ("reduce_and", "reduce_min") else tf.reduce_max
        return tf.equal(reduce(tf.cast(x, tf.int32), axis=axes), 1)
    if name in ("reduce_and", "reduce_or"):
        raise NotLowerable("bitwise reduction; only bool is supported")
    # Cast back, a sum is the same modulo the narrow type's range.
    wide = tf.cast(x, WIDER.get(x.dtype, x.dtype))
    return tf.cast(_REDUCTIONS[name](wide, axis=axes), x.dtype)


@RULES.register("argmax", "argmin")
def _argmax(lowering: Any, equation: Any, x: Any) -> Any:
    axes = equation.params["axes"]
    # ONNX searches numbers only, and not all of them.
    x = tf.cast(x, tf.int32 if x.dtype == tf.bool else WIDER.get(x.dtype, x.dtype))
    operation = tf.argmax if equation.primitive.name == "argmax" else tf.argmin
    result = operation(x, axis=int(axes[0]), output_type=tf.int64)
    return tf.cast(result, tf.as_dtype(np.dtype(equation.params["index_dtype"])))


@RULES.register("cumsum")
def _cumsum(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.cumsum(x, axis=int(equation.params["axis"]), reverse=bool(equation.params["reverse"]))


@RULES.register("cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(lowering: Any, equation: Any, x: Any) -> Any:
    name = equation.primitive.name
    axis = int(equation.params["axis"])
    length = equation.invars[0].aval.shape[axis]
    if not isinstance(length, int):
        raise NotLowerable("cumulative operation along the batch")
    combine = {
        "cumprod": tf.multiply,
        "cummax": tf.maximum,
        "cummin": tf.minimum,
        "cumlogsumexp": lambda a, b: tf.maximum(a, b) + tf.math.log(1.0 + tf.exp(-tf.abs(a - b))),
    }[name]
    slices = tf.unstack(x, num=int(length), axis=axis)
    order = range(int(length) - 1, -1, -1) if equation.params["reverse"] else range(int(length))
    running = None
    results: dict[int, Any] = {}
    for index in order:
        running = slices[index] if running is None else combine(running, slices[index])
        results[index] = running
    return tf.stack([results[index] for index in range(int(length))], axis=axis)
