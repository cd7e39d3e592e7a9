"""Rules for operations that act on each element alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from export.half_dtypes import is_half
from export.lowering.half_precision import computed_dtype, round_to
from export.lowering.registry import RULES, NotLowerable

WIDER: dict[Any, Any] = {
    tf.int8: tf.int32,
    tf.int16: tf.int32,
    tf.uint8: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
"""Integers that runtimes lack arithmetic for → a signed type that holds all their values."""


def _register_direct(primitive: str, operation: Callable[..., Any]) -> None:
    def rule(lowering: Any, equation: Any, *inputs: Any) -> Any:
        return operation(*inputs)

    RULES.register(primitive, broadcasts=True)(rule)


for _name, _operation in {
    "floor": tf.floor,
    "ceil": tf.math.ceil,
    "exp": tf.exp,
    "exp2": lambda x: tf.exp(x * np.asarray(np.log(2.0), x.dtype.as_numpy_dtype)),
    "expm1": tf.math.expm1,
    "log": tf.math.log,
    "log1p": tf.math.log1p,
    "tanh": tf.tanh,
    "logistic": tf.sigmoid,
    "sin": tf.sin,
    "cos": tf.cos,
    "tan": tf.tan,
    "asin": tf.asin,
    "acos": tf.acos,
    "atan": tf.atan,
    "sinh": tf.sinh,
    "cosh": tf.cosh,
    "asinh": tf.asinh,
    "acosh": tf.acosh,
    "atanh": tf.atanh,
    "sqrt": tf.sqrt,
    "rsqrt": tf.math.rsqrt,
    "copy": tf.identity,
    "name": tf.identity,
    "stop_gradient": tf.identity,
}.items():
    _register_direct(_name, _operation)


@RULES.register("erf", broadcasts=True)
def _erf(lowering: Any, equation: Any, x: Any) -> Any:
    if x.dtype == tf.float64:
        # TensorFlow's is NaN for infinity and huge numbers; beyond 6 the result is 1.
        low, high = constants(x, -6, 6)
        x = tf.minimum(tf.maximum(x, low), high)
    return tf.math.erf(x)


_ROUNDED_BY = {(5, 10): "float16", (8, 7): "bfloat16", (8, 23): "float32"}
"""Bits of exponent and mantissa → the type that has these."""


@RULES.register("reduce_precision", broadcasts=True)
def _reduce_precision(lowering: Any, equation: Any, x: Any) -> Any:
    kept = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    dtype = equation.invars[0].aval.dtype
    info = jnp.finfo(dtype)
    if kept[0] >= info.nexp and kept[1] >= info.nmant:
        return x
    target = _ROUNDED_BY.get(kept)
    if target is None or is_half(dtype):
        raise NotLowerable(
            f"rounding {dtype.name} to {kept[0]} bits of exponent and {kept[1]} of mantissa; "
            "float32 can be rounded to float16 (5 and 10) and bfloat16 (8 and 7)"
        )
    return round_to(x, target)


@RULES.register("optimization_barrier", broadcasts=True)
def _optimization_barrier(lowering: Any, equation: Any, *inputs: Any) -> Any:
    return list(inputs)


@RULES.register("is_finite", broadcasts=True)
def _is_finite(lowering: Any, equation: Any, x: Any) -> Any:
    # x - x is zero for every finite number and NaN for the others.
    return tf.equal(x - x, _zero(x))


@RULES.register("atan2", broadcasts=True)
def _atan2(lowering: Any, equation: Any, y: Any, x: Any) -> Any:
    return tf.atan2(y, x)


@RULES.register("select_n", broadcasts=True)
def _select_n(lowering: Any, equation: Any, which: Any, *cases: Any) -> Any:
    if len(cases) == 1:
        return tf.identity(cases[0])
    if equation.invars[0].aval.dtype == np.bool_:
        return select(which, cases[1], cases[0])
    result = cases[-1]
    for index in range(len(cases) - 2, -1, -1):
        chosen = tf.less_equal(which, np.asarray(index, which.dtype.as_numpy_dtype))
        result = select(chosen, cases[index], result)
    return result


# What ONNX's Where takes in every onnxruntime; other types go through a wider one, uint64 through
# the signed type of the same bits.
_SELECTABLE = {tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8}
_SELECTED_AS = {**WIDER, tf.uint64: tf.int64}


def select(condition: Any, if_true: Any, if_false: Any) -> Any:
    """Return `if_true` where `condition` holds, else `if_false`, in any dtype."""
    dtype = if_true.dtype
    if dtype in _SELECTABLE:
        return tf.where(condition, if_true, if_false)
    if dtype == tf.bool:
        chosen = tf.logical_and(condition, if_true)
        return tf.logical_or(chosen, tf.logical_and(tf.logical_not(condition), if_false))
    between = _SELECTED_AS.get(dtype, tf.float32)
    return tf.cast(
        tf.where(condition, tf.cast(if_true, between), tf.cast(if_false, between)), dtype
    )


@RULES.register("convert_element_type", broadcasts=True)
def _convert_element_type(lowering: Any, equation: Any, x: Any) -> Any:
    target = computed_dtype(equation.params["new_dtype"])
    if target == tf.bool and x.dtype != tf.bool:
        return tf.not_equal(x, _zero(x))
    if x.dtype.is_floating and target.is_integer:
        return _to_integer(x, target)
    return tf.cast(x, target)


def _to_integer(x: Any, target: Any) -> Any:
    """Convert floats as XLA does: toward zero, to the nearest end of the range, NaN to zero.

    What other runtimes make of a number outside the range differs from machine to machine.
    """
    # The range's upper end may lie between two floats; the lower is a power of two or zero.
    low, high = constants(x, target.min, target.max)
    exact = int(high) == target.max
    if not exact:
        high = np.nextafter(high, np.zeros_like(high))
    inside = select(tf.equal(x, x), tf.minimum(tf.maximum(x, low), high), tf.zeros_like(x))
    whole = tf.cast(inside, target)
    if exact:
        return whole
    return select(tf.greater(x, high), tf.constant(target.max, target), whole)


def constants(like: Any, *values: float | int) -> list[np.ndarray]:
    """Return NumPy scalars in the dtype of a tensor."""
    return [np.asarray(value, like.dtype.as_numpy_dtype) for value in values]


def _zero(like: Any) -> np.ndarray:
    return constants(like, 0)[0]
