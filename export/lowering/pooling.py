"""Rules for reductions over sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from jax.extend import core as jcore

from export.lowering.elementwise import WIDER
from export.lowering.registry import RULES, NotLowerable
from export.lowering.sliding import dilate, pad, window_slice

_COMBINE = {
    "reduce_window_sum": tf.add,
    "reduce_window_max": tf.maximum,
    "reduce_window_min": tf.minimum,
}


@RULES.register(*_COMBINE)
def _reduce_window(lowering: Any, equation: Any, x: Any) -> Any:
    name, dtype = equation.primitive.name, x.dtype
    if dtype in (tf.bool, tf.uint64):
        raise NotLowerable(f"windows of {dtype.name}")
    if name == "reduce_window_sum":
        filler: Any = 0
    else:
        lowest, highest = (-np.inf, np.inf) if dtype.is_floating else (dtype.min, dtype.max)
        filler = lowest if name == "reduce_window_max" else highest
    wide = tf.cast(x, WIDER.get(dtype, dtype))
    return tf.cast(_slide(lowering, equation, wide, filler, _COMBINE[name]), dtype)


@RULES.register("reduce_window")
def _generic_reduce_window(lowering: Any, equation: Any, *inputs: Any) -> Any:
    params = equation.params
    body, consts = params["jaxpr"], params["consts"]
    if len(inputs) != 2:
        raise NotLowerable("windows over several arrays at once")
    x, initial = inputs
    start = tf.get_static_value(initial)
    if start is None:
        raise NotLowerable("windows that start from a value which is not constant")
    scalar = jcore.ClosedJaxpr(body, consts)
    result = _slide(
        lowering, equation, x, start, lambda a, b: lowering.run_on_elements(scalar, [a, b])[0]
    )
    return lowering.run_on_elements(scalar, [initial, result])[0]


def _slide(
    lowering: Any, equation: Any, x: Any, filler: Any, combine: Callable[[Any, Any], Any]
) -> Any:
    """Combine the elements of each window, one axis after the other."""
    params = equation.params
    x = dilate(lowering, x, [int(d) for d in params["base_dilation"]], filler)
    x = pad(x, [(int(low), int(high)) for low, high in params["padding"]], filler)
    windows = zip(
        params["window_dimensions"],
        params["window_strides"],
        params["window_dilation"],
        strict=True,
    )
    for axis, (length, stride, dilation) in enumerate(windows):
        if length == 1 and stride == 1:
            continue
        reach = (int(length) - 1) * int(dilation) + 1
        total = None
        for place in range(int(length)):
            part = window_slice(x, axis, place * int(dilation), reach, int(stride))
            total = part if total is None else combine(total, part)
        x = total
    return x
