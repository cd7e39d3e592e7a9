"""Rules for operations that move elements without changing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

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


@RULES.register("squeeze", "expand_dims")
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
    return tf.concat(list(inputs), axis=int(equation.params["dimension"]))


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
        whole_end = None if limit == size else lowering.dimension(limit)
        slices.append(slice(lowering.dimension(start) or None, whole_end, int(stride)))
    return x[tuple(slices)]


@RULES.register("take_slot")
def _take_slot(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.gather(x, equation.params["index"], axis=equation.params["axis"])


@RULES.register("rev")
def _rev(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.reverse(x, [int(axis) for axis in equation.params["dimensions"]])


@RULES.register("pad")
def _pad(lowering: Any, equation: Any, x: Any, value: Any) -> Any:
    config = equation.params["padding_config"]
    if any(interior for _, _, interior in config):
        raise NotLowerable("interior padding")
    # Negative padding cuts.
    x = x[
        tuple(
            slice(-low if low < 0 else None, high if high < 0 else None) for low, high, _ in config
        )
    ]
    padding = [[max(int(low), 0), max(int(high), 0)] for low, high, _ in config]
    if not any(low or high for low, high in padding):
        return x
    return tf.pad(x, padding, constant_values=value)


@RULES.register("iota")
def _iota(lowering: Any, equation: Any, *dynamic_shape: Any) -> Any:
    aval = equation.outvars[0].aval
    axis = int(equation.params["dimension"])
    count = lowering.dimension(aval.shape[axis])
    indices = tf.cast(tf.range(count), tf.as_dtype(np.dtype(aval.dtype)))
    sizes: list[Any] = [1] * len(aval.shape)
    sizes[axis] = aval.shape[axis]
    return lowering.full(tf.reshape(indices, lowering.shape(sizes)), aval)


@RULES.register("dim_as_value")
def _dim_as_value(lowering: Any, equation: Any) -> Any:
    target = tf.as_dtype(np.dtype(equation.outvars[0].aval.dtype))
    return tf.cast(lowering.dimension(equation.params["dim"]), target)


@RULES.register("dynamic_slice")
def _dynamic_slice(lowering: Any, equation: Any, x: Any, *starts: Any) -> Any:
    sizes = equation.params["slice_sizes"]
    shape = equation.invars[0].aval.shape
    begin = _clamped_starts(lowering, starts, shape, sizes)
    return tf.slice(x, begin, lowering.exact_shape(sizes))


@RULES.register("dynamic_update_slice")
def _dynamic_update_slice(lowering: Any, equation: Any, x: Any, update: Any, *starts: Any) -> Any:
    shape = equation.invars[0].aval.shape
    sizes = equation.invars[1].aval.shape
    moved = [a for a in range(len(shape)) if shape[a] != sizes[a]]
    if not moved:
        return tf.identity(update)
    if len(moved) > 1:
        raise NotLowerable("dynamic_update_slice along more than one axis")
    axis = moved[0]
    begin = _clamped_starts(lowering, starts, shape, sizes)[axis]
    size = int(sizes[axis])
    # x before the update, the update, x after it.
    before = x[_along(axis, None, begin)]
    after = x[_along(axis, begin + size, None)]
    return tf.concat([before, update, after], axis=axis)


def _along(axis: int, start: Any, stop: Any) -> tuple[Any, ...]:
    return (*([slice(None)] * axis), slice(start, stop))


def _clamped_starts(lowering: Any, starts: Any, shape: Any, sizes: Any) -> Any:
    """Return start indices moved so that the slice stays inside, as XLA does."""
    clamped = []
    for start, size, extent in zip(starts, sizes, shape, strict=True):
        known = tf.get_static_value(start)
        if extent == size:
            clamped.append(0)
        elif known is not None and isinstance(extent, int):
            clamped.append(int(np.clip(int(known), 0, extent - int(size))))
        else:
            last = tf.cast(lowering.dimension(extent) - lowering.dimension(size), tf.int32)
            clamped.append(tf.minimum(tf.maximum(tf.cast(start, tf.int32), 0), last))
    return clamped if all(isinstance(c, int) for c in clamped) else tf.stack(clamped)
