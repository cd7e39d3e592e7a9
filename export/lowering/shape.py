"""Rules for operations that move elements without changing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.arithmetic import SAME_BITS
from export.lowering.half_precision import computed_dtype
from export.lowering.registry import RULES, NotLowerable


@RULES.register("broadcast_in_dim", broadcasts=True)
def _broadcast_in_dim(lowering: Any, equation: Any, x: Any, *dynamic_shape: Any) -> Any:
    # The value stays as narrow as it is; only its axes move to their places.
    rank = len(equation.params["shape"])
    places = equation.params["broadcast_dimensions"]
    if x.shape.rank == 0 or rank == 0:
        return x
    source = equation.invars[0].aval.shape
    if x.shape.rank == rank and tuple(places) == tuple(range(rank)):
        return x
    sizes: list[Any] = [1] * rank
    own = x.shape.as_list()
    for axis, place in enumerate(places):
        sizes[place] = own[axis] if own[axis] == 1 else source[axis]
    return tf.reshape(x, lowering.shape(sizes))


@RULES.register("reshape")
def _reshape(lowering: Any, equation: Any, x: Any, *dynamic_shape: Any) -> Any:
    if equation.params.get("dimensions") is not None:
        raise NotLowerable("reshape with a permutation")
    return tf.reshape(x, lowering.shape(equation.outvars[0].aval.shape))


@RULES.register("squeeze")
def _squeeze(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.reshape(x, lowering.shape(equation.outvars[0].aval.shape))


@RULES.register("transpose")
def _transpose(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.transpose(x, [int(axis) for axis in equation.params["permutation"]])


@RULES.register("tile")
def _tile(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.tile(x, lowering.exact_shape(equation.params["reps"]))


@RULES.register("concatenate")
def _concatenate(lowering: Any, equation: Any, *inputs: Any) -> Any:
    axis = int(equation.params["dimension"])
    # ONNX cannot repeat an element no times, which is what JAX pads an edge by nothing with.
    parts = [
        value
        for value, atom in zip(inputs, equation.invars, strict=True)
        if not _is_zero(atom.aval.shape[axis])
    ]
    return tf.concat(parts or list(inputs), axis=axis)


@RULES.register("stack")
def _stack(lowering: Any, equation: Any, *inputs: Any) -> Any:
    return tf.stack(list(inputs), axis=int(equation.params["axis"]))


@RULES.register("unstack")
def _unstack(lowering: Any, equation: Any, x: Any) -> Any:
    return list(tf.unstack(x, num=len(equation.outvars), axis=int(equation.params["axis"])))


@RULES.register("split")
def _split(lowering: Any, equation: Any, x: Any) -> Any:
    sizes = [int(size) for size in equation.params["sizes"]]
    return list(tf.split(x, sizes, axis=int(equation.params["axis"])))


@RULES.register("slice")
def _slice(lowering: Any, equation: Any, x: Any) -> Any:
    starts = equation.params["start_indices"]
    limits = equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    slices = []
    for size, start, limit, stride in zip(
        equation.invars[0].aval.shape, starts, limits, strides, strict=True
    ):
        # An axis that is taken whole needs no bounds, which matters where its length is the batch.
        first = None if _is_zero(start) else lowering.dimension(start)
        end = None if limit == size else lowering.dimension(limit)
        slices.append(slice(first, end, int(stride)))
    return x[tuple(slices)]


def _is_zero(size: Any) -> bool:
    return isinstance(size, int | np.integer) and int(size) == 0


@RULES.register("take_slot")
def _take_slot(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.gather(x, equation.params["index"], axis=equation.params["axis"])


@RULES.register("rev")
def _rev(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.reverse(x, [int(axis) for axis in equation.params["dimensions"]])


@RULES.register("pad")
def _pad(lowering: Any, equation: Any, x: Any, value: Any) -> Any:
    config = equation.params["padding_config"]
    dtype = x.dtype
    # ONNX pads few types; bools go as 0 and 1, narrow integers as wider ones.
    wide = tf.int32 if dtype == tf.bool else SAME_BITS.get(dtype, dtype)
    padded = _padded(lowering, config, tf.cast(x, wide), tf.cast(value, wide))
    return tf.not_equal(padded, 0) if dtype == tf.bool else tf.cast(padded, dtype)


def _padded(lowering: Any, config: Any, x: Any, value: Any) -> Any:
    for axis, (_, _, interior) in enumerate(config):
        if interior:
            x = _spread(x, value, axis, int(interior))
    sizes = [
        [0 if _is_negative(size) else lowering.dimension(size) for size in (low, high)]
        for low, high, _ in config
    ]
    if any(not _is_zero(size) for pair in sizes for size in pair):
        x = tf.pad(x, sizes, constant_values=value)
    # Negative padding cuts, after what the other side adds.
    cut = [
        slice(-low if _is_negative(low) else None, high if _is_negative(high) else None)
        for low, high, _ in config
    ]
    return x if all(part == slice(None) for part in cut) else x[tuple(cut)]


def _is_negative(size: Any) -> bool:
    return isinstance(size, int | np.integer) and int(size) < 0


def _spread(x: Any, value: Any, axis: int, interior: int) -> Any:
    """Put `interior` values between neighbours along an axis."""
    padding = [[0, 0] for _ in range(x.shape.rank + 1)]
    padding[axis + 1][1] = interior
    apart = tf.pad(tf.expand_dims(x, axis + 1), padding, constant_values=value)
    shape = tf.shape(x)
    size = shape[axis] * (interior + 1)
    merged = tf.reshape(apart, tf.concat([shape[:axis], [size], shape[axis + 1 :]], axis=0))
    # No values follow the last element.
    return merged[(*([slice(None)] * axis), slice(None, -interior))]


@RULES.register("iota")
def _iota(lowering: Any, equation: Any, *dynamic_shape: Any) -> Any:
    aval = equation.outvars[0].aval
    axis = int(equation.params["dimension"])
    count = lowering.dimension(aval.shape[axis])
    indices = tf.cast(tf.range(count), computed_dtype(aval.dtype))
    sizes: list[Any] = [1] * len(aval.shape)
    sizes[axis] = aval.shape[axis]
    return lowering.full(tf.reshape(indices, lowering.shape(sizes)), aval)


@RULES.register("dim_as_value")
def _dim_as_value(lowering: Any, equation: Any) -> Any:
    target = computed_dtype(equation.outvars[0].aval.dtype)
    return tf.cast(lowering.dimension(equation.params["dim"]), target)
