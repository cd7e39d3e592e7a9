"""Rules for operations that act on each element alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorflow as tf

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
    "add": tf.add,
    "add_any": tf.add,
    "sub": tf.subtract,
    "mul": tf.multiply,
    "neg": tf.negative,
    "sign": tf.sign,
    "abs": tf.abs,
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
    "square": lambda x: tf.multiply(x, x),
    "erf": tf.math.erf,
    "erfc": lambda x: tf.subtract(np.asarray(1, x.dtype.as_numpy_dtype), tf.math.erf(x)),
    "eq": tf.equal,
    "ne": tf.not_equal,
    "lt": tf.less,
    "le": tf.less_equal,
    "gt": tf.greater,
    "ge": tf.greater_equal,
    "copy": tf.identity,
    "copy_p": tf.identity,
    "name": tf.identity,
    "stop_gradient": tf.identity,
}.items():
    _register_direct(_name, _operation)


@RULES.register("max", "min", broadcasts=True)
def _extremum(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    is_max = equation.primitive.name == "max"
    if x.dtype == tf.bool:
        return tf.logical_or(x, y) if is_max else tf.logical_and(x, y)
    wide = WIDER.get(x.dtype, x.dtype)
    choose = tf.maximum if is_max else tf.minimum
    return tf.cast(choose(tf.cast(x, wide), tf.cast(y, wide)), x.dtype)


@RULES.register("reduce_precision", broadcasts=True)
def _reduce_precision(lowering: Any, equation: Any, x: Any) -> Any:
    kept = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    info = jnp.finfo(equation.invars[0].aval.dtype)
    if kept[0] < info.nexp or kept[1] < info.nmant:
        raise NotLowerable(f"rounding to {kept[0]} bits of exponent and {kept[1]} of mantissa")
    return x


@RULES.register("optimization_barrier", broadcasts=True)
def _optimization_barrier(lowering: Any, equation: Any, *inputs: Any) -> Any:
    return list(inputs)


@RULES.register("cbrt", broadcasts=True)
def _cbrt(lowering: Any, equation: Any, x: Any) -> Any:
    third = np.asarray(1.0 / 3.0, x.dtype.as_numpy_dtype)
    return tf.sign(x) * tf.pow(tf.abs(x), third)


@RULES.register("is_finite", broadcasts=True)
def _is_finite(lowering: Any, equation: Any, x: Any) -> Any:
    # x - x is zero for every finite number and NaN for the others.
    return tf.equal(x - x, _zero(x))


@RULES.register("atan2", broadcasts=True)
def _atan2(lowering: Any, equation: Any, y: Any, x: Any) -> Any:
    return tf.atan2(y, x)


@RULES.register("round", broadcasts=True)
def _round(lowering: Any, equation: Any, x: Any) -> Any:
    if "AWAY" in str(equation.params["rounding_method"]):
        (half,) = _constants(x, 0.5)
        return tf.sign(x) * tf.floor(tf.abs(x) + half)
    return tf.round(x)


@RULES.register("integer_pow", broadcasts=True)
def _integer_pow(lowering: Any, equation: Any, x: Any) -> Any:
    exponent = int(equation.params["y"])
    if exponent < 0:
        return tf.math.reciprocal(_power(x, -exponent))
    return _power(x, exponent)


def _power(x: Any, exponent: int) -> Any:
    """Multiply `x` with itself by repeated squaring."""
    if exponent == 0:
        return tf.ones_like(x)
    result = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return result


@RULES.register("pow", broadcasts=True)
def _pow(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    return tf.pow(x, tf.cast(y, x.dtype))


@RULES.register("div", broadcasts=True)
def _div(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    if equation.outvars[0].aval.dtype.kind == "f":
        return tf.divide(x, y)
    quotient, _ = _integer_division(x, y)
    return quotient


@RULES.register("rem", broadcasts=True)
def _rem(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    if equation.outvars[0].aval.dtype.kind == "f":
        # C's fmod: the sign of x; on magnitudes floor and truncation agree.
        return tf.sign(x) * tf.math.floormod(tf.abs(x), tf.abs(y))
    _, remainder = _integer_division(x, y)
    return remainder


def _integer_division(x: Any, y: Any) -> tuple[Any, Any]:
    """Divide integers, rounding toward zero.

    Only magnitudes are divided: tf2onnx and the ONNX runtimes disagree on negative operands. XLA
    defines division by zero as quotient -1 and remainder x, where runtimes may trap.
    """
    if x.dtype == tf.uint64:
        raise NotLowerable("division of uint64")
    if x.dtype in WIDER:
        # A quotient of -1 becomes the largest number of an unsigned type, as in XLA.
        wide = _integer_division(tf.cast(x, WIDER[x.dtype]), tf.cast(y, WIDER[x.dtype]))
        return tf.cast(wide[0], x.dtype), tf.cast(wide[1], x.dtype)
    zero, one, minus_one = _constants(x, 0, 1, -1)
    by_zero = tf.equal(y, zero)
    magnitude = tf.where(by_zero, one, tf.abs(y))
    quotient = tf.math.floordiv(tf.abs(x), magnitude)
    remainder = tf.abs(x) - quotient * magnitude
    signed = tf.where(tf.equal(x < zero, y < zero), quotient, -quotient)
    return (
        tf.where(by_zero, minus_one, signed),
        tf.where(by_zero, x, tf.where(x < zero, -remainder, remainder)),
    )


@RULES.register("and", broadcasts=True)
def _and(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    return _logical(equation, tf.logical_and, x, y)


@RULES.register("or", broadcasts=True)
def _or(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    return _logical(equation, tf.logical_or, x, y)


@RULES.register("xor", broadcasts=True)
def _xor(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    return _logical(equation, tf.not_equal, x, y)


@RULES.register("not", broadcasts=True)
def _not(lowering: Any, equation: Any, x: Any) -> Any:
    return _logical(equation, tf.logical_not, x)


def _logical(equation: Any, operation: Any, *inputs: Any) -> Any:
    if equation.invars[0].aval.dtype != np.bool_:
        raise NotLowerable(f"bitwise on {equation.invars[0].aval.dtype}; only bool is supported")
    return operation(*inputs)


@RULES.register("clamp", broadcasts=True)
def _clamp(lowering: Any, equation: Any, low: Any, x: Any, high: Any) -> Any:
    wide = WIDER.get(x.dtype, x.dtype)
    low, value, high = (tf.cast(item, wide) for item in (low, x, high))
    return tf.cast(tf.minimum(tf.maximum(value, low), high), x.dtype)


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
    target = tf.as_dtype(np.dtype(equation.params["new_dtype"]))
    if target == tf.bool and x.dtype != tf.bool:
        return tf.not_equal(x, _zero(x))
    if x.dtype.is_floating and target.is_integer:
        return _to_integer(x, target)
    return tf.cast(x, target)


def _to_integer(x: Any, target: Any) -> Any:
    """Convert floats as XLA does: toward zero, to the nearest end of the range, NaN to zero.

    What other runtimes make of a number outside the range differs from machine to machine.
    """
    if x.dtype in (tf.float16, tf.bfloat16):
        x = tf.cast(x, tf.float32)
    # The range's upper end may lie between two floats; the lower is a power of two or zero.
    low, high = _constants(x, target.min, target.max)
    exact = int(high) == target.max
    if not exact:
        high = np.nextafter(high, np.zeros_like(high))
    inside = select(tf.equal(x, x), tf.minimum(tf.maximum(x, low), high), tf.zeros_like(x))
    whole = tf.cast(inside, target)
    if exact:
        return whole
    return select(tf.greater(x, high), tf.constant(target.max, target), whole)


def _constants(like: Any, *values: float | int) -> list[np.ndarray]:
    """Return NumPy scalars in the dtype of a tensor."""
    return [np.asarray(value, like.dtype.as_numpy_dtype) for value in values]


def _zero(like: Any) -> np.ndarray:
    return _constants(like, 0)[0]
