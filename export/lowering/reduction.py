"""Rules for reductions, cumulative operations and arg-reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.registry import RULES, NotLowerable

_REDUCTIONS = {
    "reduce_sum": tf.reduce_sum,
    "reduce_max": tf.reduce_max,
    "reduce_min": tf.reduce_min,
    "reduce_prod": tf.reduce_prod,
    "reduce_and": tf.reduce_all,
    "reduce_or": tf.reduce_any,
}


@RULES.register(*_REDUCTIONS)
def _reduce(lowering: Any, equation: Any, x: Any) -> Any:
    name = equation.primitive.name
    axes = [int(axis) for axis in equation.params["axes"]]
    if name in ("reduce_and", "reduce_or"):
        if equation.invars[0].aval.dtype != np.bool_:
            raise NotLowerable("bitwise reduction; only bool is supported")
        # As integers, since ONNX reduces numbers only.
        number = tf.cast(x, tf.int32)
        reduce = tf.reduce_min if name == "reduce_and" else tf.reduce_max
        return tf.equal(reduce(number, axis=axes), 1)
    return _REDUCTIONS[name](x, axis=axes)


@RULES.register("argmax", "argmin")
def _argmax(lowering: Any, equation: Any, x: Any) -> Any:
    axes = equation.params["axes"]
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
