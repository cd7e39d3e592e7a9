"""Rules for reductions and for the places of extrema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.extend import core as jcore

from export.lowering.arithmetic import SAME_BITS, from_ordered, ordered
from export.lowering.elementwise import WIDER
from export.lowering.registry import RULES, NotLowerable
from export.passes.inline_calls import inline_calls

_REDUCTIONS = {
    "reduce_sum": tf.reduce_sum,
    "reduce_max": tf.reduce_max,
    "reduce_min": tf.reduce_min,
    "reduce_prod": tf.reduce_prod,
}

_MODULAR: dict[str, Callable[..., Any]] = {"reduce_sum": tf.add, "reduce_prod": tf.multiply}

_BITWISE = {
    "reduce_and": tf.bitwise.bitwise_and,
    "reduce_or": tf.bitwise.bitwise_or,
    "reduce_xor": tf.bitwise.bitwise_xor,
}


@RULES.register(*_REDUCTIONS, *_BITWISE)
def _reduce(lowering: Any, equation: Any, x: Any) -> Any:
    name = equation.primitive.name
    axes = [int(axis) for axis in equation.params["axes"]]
    if x.dtype == tf.bool:
        return _reduce_bools(name, tf.cast(x, tf.int32), axes)
    if name in _BITWISE:
        for axis in sorted(axes, reverse=True):
            length = _static_length(equation, axis)
            if length == 0:
                raise NotLowerable("a reduction of no elements")
            (x,) = _fold([x], axis, length, lambda a, b, _: [_BITWISE[name](a[0], b[0])])
        return x
    if name in _MODULAR and not x.dtype.is_floating:
        folded = _fold_integers(equation, x, axes, _MODULAR[name])
        if folded is not None:
            return folded
    if name in ("reduce_max", "reduce_min") and not x.dtype.is_floating:
        return from_ordered(_REDUCTIONS[name](ordered(x), axis=axes), x.dtype)
    # Cast back, a sum is the same modulo the narrow type's range. ONNX Runtime's own ends there.
    wide = tf.cast(x, tf.int64 if x.dtype == tf.int32 else WIDER.get(x.dtype, x.dtype))
    result = _REDUCTIONS[name](wide, axis=axes)
    if name in ("reduce_max", "reduce_min"):
        # ONNX Runtime passes over NaN. In a sum every NaN counts.
        zero = np.zeros([], x.dtype.as_numpy_dtype)
        result += tf.reduce_sum(tf.where(tf.math.is_nan(x), x, zero), axis=axes)
    return tf.cast(result, x.dtype)


def _fold_integers(
    equation: Any, x: Any, axes: list[int], combine: Callable[..., Any]
) -> Any | None:
    """Combine integers pair by pair; None where ONNX Runtime's own reduction is exact.

    It multiplies integers, and adds those of 64 bits, as floats that end at the range's ends.
    """
    shape = equation.invars[0].aval.shape
    if combine is tf.add and x.dtype not in (tf.int64, tf.uint64):
        return None
    if not all(isinstance(shape[axis], int | np.integer) and shape[axis] for axis in axes):
        return None
    value = tf.cast(x, SAME_BITS.get(x.dtype, x.dtype))
    for axis in sorted(axes, reverse=True):
        (value,) = _fold([value], axis, int(shape[axis]), lambda a, b, _: [combine(a[0], b[0])])
    return tf.cast(value, x.dtype)


def _reduce_bools(name: str, x: Any, axes: list[int]) -> Any:
    """Reduce bools as integers, since ONNX reduces numbers only."""
    if name == "reduce_xor":
        total = tf.reduce_sum(x, axis=axes)
        return tf.not_equal(total, 2 * tf.math.floordiv(total, 2))
    reduce = tf.reduce_min if name in ("reduce_and", "reduce_min", "reduce_prod") else tf.reduce_max
    return tf.equal(reduce(x, axis=axes), 1)


@RULES.register("argmax", "argmin")
def _argmax(lowering: Any, equation: Any, x: Any) -> Any:
    """Return the first place of the extremum; a NaN counts as one, as in JAX."""
    axis = int(equation.params["axes"][0])
    is_max = equation.primitive.name == "argmax"
    # ONNX searches numbers only, and not all of them.
    x = ordered(x)
    operation = tf.argmax if is_max else tf.argmin
    if x.dtype.is_floating:
        best = (tf.reduce_max if is_max else tf.reduce_min)(x, axis=axis, keepdims=True)
        # 2 where NaN is, 1 where the extremum is.
        marks = tf.cast(tf.equal(x, best), tf.int32) + 2 * tf.cast(tf.math.is_nan(x), tf.int32)
        x, operation = marks, tf.argmax
    result = operation(x, axis=axis, output_type=tf.int64)
    return tf.cast(result, tf.as_dtype(np.dtype(equation.params["index_dtype"])))


@RULES.register("reduce")
def _generic_reduce(lowering: Any, equation: Any, *inputs: Any) -> Any:
    """Reduce with a function of the user's, which is associative, by halves."""
    count = len(inputs) // 2
    values, initial = list(inputs[:count]), inputs[count:]
    body: jcore.ClosedJaxpr = equation.params["jaxpr"]
    shape = list(equation.invars[0].aval.shape)
    for axis in sorted((int(a) for a in equation.params["dimensions"]), reverse=True):
        length = _static_length(equation, axis)
        if length == 0:
            raise NotLowerable("a reduction of no elements")

        def combine(a: list[Any], b: list[Any], half: int, axis: int = axis) -> list[Any]:
            # The function is written for scalars.
            own = [*shape[:axis], half, *shape[axis + 1 :]]
            return lowering.run(_elementwise(body, own), [*a, *b])

        values = _fold(values, axis, length, combine)
        del shape[axis]
    starts = [
        lowering.full(value, variable.aval)
        for value, variable in zip(initial, equation.outvars, strict=True)
    ]
    return lowering.run(_elementwise(body, shape), [*starts, *values])


def _elementwise(body: jcore.ClosedJaxpr, shape: Sequence[Any]) -> jcore.ClosedJaxpr:
    """Return a function of scalars as one of arrays."""
    function: Callable[..., Any] = jcore.jaxpr_as_fun(body)
    for _ in shape:
        function = jax.vmap(function)
    specs = [jax.ShapeDtypeStruct(tuple(shape), aval.dtype) for aval in body.in_avals]
    return inline_calls(jax.make_jaxpr(function)(*specs))


def _static_length(equation: Any, axis: int) -> int:
    length = equation.invars[0].aval.shape[axis]
    if not isinstance(length, int | np.integer):
        raise NotLowerable("a reduction over the batch; export with batch_size=N")
    return int(length)


def _fold(
    values: list[Any],
    axis: int,
    length: int,
    combine: Callable[[list[Any], list[Any], int], list[Any]],
) -> list[Any]:
    """Combine along an axis until one is left, the front half with the back half in each round."""

    def part(value: Any, start: int | None, stop: int | None) -> Any:
        return value[(*([slice(None)] * axis), slice(start, stop))]

    while length > 1:
        half = length // 2
        front = [part(value, None, half) for value in values]
        back = [part(value, half, 2 * half) for value in values]
        rest = [part(value, 2 * half, None) for value in values]
        values = combine(front, back, half)
        if length % 2:
            values = [tf.concat(pair, axis=axis) for pair in zip(values, rest, strict=True)]
        length = half + length % 2
    return [tf.squeeze(value, axis=axis) for value in values]
