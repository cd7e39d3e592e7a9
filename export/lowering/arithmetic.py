"""Rules for arithmetic and order, of floats and of every integer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from jax import lax

from export.lowering.elementwise import WIDER, constants
from export.lowering.registry import RULES, NotLowerable

SAME_BITS = {**WIDER, tf.uint64: tf.int64}
"""Integers → a signed type in which sums and products are the same modulo the range."""

_HIGHEST_BIT = np.int64(-(2**63))


def _register_modular(primitive: str, operation: Callable[..., Any]) -> None:
    def rule(lowering: Any, equation: Any, *inputs: Any) -> Any:
        dtype = inputs[0].dtype
        between = SAME_BITS.get(dtype, dtype)
        return tf.cast(operation(*(tf.cast(item, between) for item in inputs)), dtype)

    RULES.register(primitive, broadcasts=True)(rule)


for _name, _operation in {
    "add": tf.add,
    "add_any": tf.add,
    "sub": tf.subtract,
    "mul": tf.multiply,
    "neg": tf.negative,
    "square": lambda x: tf.multiply(x, x),
}.items():
    _register_modular(_name, _operation)

if hasattr(lax, "one_minus_square_p"):  # from JAX 0.12 on, in derivatives and inverse functions
    _register_modular("one_minus_square", lambda x: (1 + x) * (1 - x))


def _register_comparison(primitive: str, operation: Callable[..., Any]) -> None:
    def rule(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
        return operation(ordered(x), ordered(y))

    RULES.register(primitive, broadcasts=True)(rule)


for _name, _operation in {
    "eq": tf.equal,
    "ne": tf.not_equal,
    "lt": tf.less,
    "le": tf.less_equal,
    "gt": tf.greater,
    "ge": tf.greater_equal,
}.items():
    _register_comparison(_name, _operation)


@RULES.register("max", "min", broadcasts=True)
def _extremum(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    is_max = equation.primitive.name == "max"
    if x.dtype == tf.bool:
        return tf.logical_or(x, y) if is_max else tf.logical_and(x, y)
    choose = tf.maximum if is_max else tf.minimum
    return from_ordered(choose(ordered(x), ordered(y)), x.dtype)


@RULES.register("clamp", broadcasts=True)
def _clamp(lowering: Any, equation: Any, low: Any, x: Any, high: Any) -> Any:
    bounded = tf.minimum(tf.maximum(ordered(x), ordered(low)), ordered(high))
    return from_ordered(bounded, x.dtype)


def ordered(x: Any) -> Any:
    """Return numbers in the order of `x`, of a dtype that every runtime compares."""
    if x.dtype == tf.uint64:
        return tf.bitwise.bitwise_xor(tf.cast(x, tf.int64), _HIGHEST_BIT)
    if x.dtype == tf.bool:
        return tf.cast(x, tf.int32)
    return tf.cast(x, WIDER.get(x.dtype, x.dtype))


def from_ordered(value: Any, dtype: Any) -> Any:
    """Return the numbers of a dtype that `ordered` made these of."""
    if dtype == tf.uint64:
        value = tf.bitwise.bitwise_xor(value, _HIGHEST_BIT)
    return tf.cast(value, dtype)


@RULES.register("sign", broadcasts=True)
def _sign(lowering: Any, equation: Any, x: Any) -> Any:
    if x.dtype.is_unsigned:
        return tf.cast(tf.not_equal(tf.cast(x, tf.int64), np.int64(0)), x.dtype)
    return tf.cast(tf.sign(tf.cast(x, WIDER.get(x.dtype, x.dtype))), x.dtype)


@RULES.register("abs", broadcasts=True)
def _abs(lowering: Any, equation: Any, x: Any) -> Any:
    if x.dtype.is_unsigned:
        return tf.identity(x)
    return tf.cast(tf.abs(tf.cast(x, WIDER.get(x.dtype, x.dtype))), x.dtype)


@RULES.register("round", broadcasts=True)
def _round(lowering: Any, equation: Any, x: Any) -> Any:
    if equation.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return tf.round(x)
    # Not floor(x + 1/2): that sum rounds up just below one half and loses large odd numbers.
    half, zero, one = constants(x, 0.5, 0, 1)
    whole = tf.floor(tf.abs(x))
    up = tf.where(tf.greater_equal(tf.abs(x) - whole, half), one, zero)
    rounded = whole + up
    # What is whole already stays as it is, infinities and the sign of zero too.
    signed = tf.where(tf.less(x, zero), -rounded, rounded)
    return tf.where(tf.equal(tf.floor(x), x), x, signed)


@RULES.register("integer_pow", broadcasts=True)
def _integer_pow(lowering: Any, equation: Any, x: Any) -> Any:
    exponent = int(equation.params["y"])
    between = SAME_BITS.get(x.dtype, x.dtype)
    power = _power(tf.cast(x, between), abs(exponent))
    if exponent < 0:
        return tf.math.reciprocal(power)
    return tf.cast(power, x.dtype)


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
    if not x.dtype.is_floating:
        raise NotLowerable(f"powers of {x.dtype.name}; only a constant exponent is supported")
    return tf.pow(x, tf.cast(y, x.dtype))


@RULES.register("div", broadcasts=True)
def _div(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    if x.dtype.is_floating:
        return tf.divide(x, y)
    return _integer_division(x, y)[0]


@RULES.register("rem", broadcasts=True)
def _rem(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    if x.dtype.is_floating:
        # C's fmod, exact also for huge ratios.
        return tf.truncatemod(x, y)
    return _integer_division(x, y)[1]


def _integer_division(x: Any, y: Any) -> tuple[Any, Any]:
    """Divide integers, rounding toward zero.

    Only magnitudes are divided: tf2onnx and the ONNX runtimes disagree on negative operands. XLA
    defines division by zero as quotient -1 and remainder x, where runtimes may trap.
    """
    if x.dtype == tf.uint64:
        return _unsigned_division(x, y)
    # The magnitude of the lowest int32 or int64 needs one bit more.
    wider = tf.int64 if x.dtype == tf.int32 else WIDER.get(x.dtype)
    if wider is not None:
        # A quotient of -1 becomes the largest number of an unsigned type, as in XLA.
        quotient, remainder = _magnitude_division(tf.cast(x, wider), tf.cast(y, wider))
        return tf.cast(quotient, x.dtype), tf.cast(remainder, x.dtype)
    return _magnitude_division(x, y, as_unsigned=True)


def _magnitude_division(x: Any, y: Any, as_unsigned: bool = False) -> tuple[Any, Any]:
    """Divide int32 or int64 by their magnitudes, as unsigned where one may be 2^63."""
    zero, one, minus_one = constants(x, 0, 1, -1)
    by_zero = tf.equal(y, zero)
    magnitude = tf.where(by_zero, one, tf.abs(y))
    if as_unsigned:
        parts = _unsigned_division(tf.cast(tf.abs(x), tf.uint64), tf.cast(magnitude, tf.uint64))
        quotient, remainder = (tf.cast(part, x.dtype) for part in parts)
    else:
        quotient = tf.math.floordiv(tf.abs(x), magnitude)
        remainder = tf.abs(x) - quotient * magnitude
    signed = tf.where(tf.equal(x < zero, y < zero), quotient, -quotient)
    return (
        tf.where(by_zero, minus_one, signed),
        tf.where(by_zero, x, tf.where(x < zero, -remainder, remainder)),
    )


def _unsigned_division(x: Any, y: Any) -> tuple[Any, Any]:
    """Divide uint64 with int64's division (Hacker's Delight, 2nd ed., 9-3).

    Half of x fits into int64; twice its quotient is the quotient sought or one less. A divisor of
    2^63 or more goes into x once or not at all.
    """
    zero, one = np.int64(0), np.int64(1)
    shifted = tf.bitwise.right_shift(x, tf.constant(1, tf.uint64))
    half, bits, divisor = (tf.cast(item, tf.int64) for item in (shifted, x, y))
    large = tf.less(divisor, zero)
    usual = tf.where(tf.less_equal(divisor, zero), one, divisor)
    quotient = tf.math.floordiv(half, usual) * np.int64(2)
    quotient = tf.where(large, zero, quotient)
    rest = bits - quotient * divisor
    once_more = tf.greater_equal(
        tf.bitwise.bitwise_xor(rest, _HIGHEST_BIT), tf.bitwise.bitwise_xor(divisor, _HIGHEST_BIT)
    )
    quotient = tf.where(once_more, quotient + one, quotient)
    rest = tf.where(once_more, rest - divisor, rest)
    by_zero = tf.equal(divisor, zero)
    return (
        tf.cast(tf.where(by_zero, np.int64(-1), quotient), tf.uint64),
        tf.cast(tf.where(by_zero, bits, rest), tf.uint64),
    )
