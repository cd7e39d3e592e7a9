"""Rules for the bits of integers.

Everything but and/or/xor/not is computed in 64 bits: ONNX shifts unsigned integers only, and not by
their width or more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.registry import RULES

_UNSIGNED: dict[Any, Any] = {
    tf.int8: tf.uint8,
    tf.int16: tf.uint16,
    tf.int32: tf.uint32,
    tf.int64: tf.uint64,
}
_SIGNED: dict[Any, Any] = {unsigned: signed for signed, unsigned in _UNSIGNED.items()}

_ZERO, _ALL_ONES = np.int64(0), np.int64(-1)

_BITWISE = {
    "and": (tf.logical_and, tf.bitwise.bitwise_and),
    "or": (tf.logical_or, tf.bitwise.bitwise_or),
    "xor": (tf.not_equal, tf.bitwise.bitwise_xor),
    "not": (tf.logical_not, tf.bitwise.invert),
}


@RULES.register(*_BITWISE, broadcasts=True)
def _bitwise(lowering: Any, equation: Any, *inputs: Any) -> Any:
    on_bools, on_integers = _BITWISE[equation.primitive.name]
    return (on_bools if inputs[0].dtype == tf.bool else on_integers)(*inputs)


@RULES.register("shift_left", broadcasts=True)
def _shift_left(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    amount, too_far = _shift_amount(y)
    moved = tf.bitwise.left_shift(tf.cast(x, tf.uint64), tf.cast(amount, tf.uint64))
    return tf.cast(tf.where(too_far, _ZERO, tf.cast(moved, tf.int64)), x.dtype)


@RULES.register("shift_right_logical", broadcasts=True)
def _shift_right_logical(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    amount, too_far = _shift_amount(y)
    return tf.cast(tf.where(too_far, _ZERO, _shift_right(_bits(x), amount)), x.dtype)


@RULES.register("shift_right_arithmetic", broadcasts=True)
def _shift_right_arithmetic(lowering: Any, equation: Any, x: Any, y: Any) -> Any:
    amount, too_far = _shift_amount(y)
    # Also an unsigned number counts as negative if its highest bit is set. Its complement is not
    # negative, and shifting zeros into that is shifting ones into the number.
    value = tf.cast(tf.cast(x, _SIGNED.get(x.dtype, x.dtype)), tf.int64)
    flip = tf.where(tf.less(value, _ZERO), _ALL_ONES, _ZERO)
    amount = tf.where(too_far, np.int64(_width(x) - 1), amount)
    moved = _shift_right(tf.bitwise.bitwise_xor(value, flip), amount)
    return tf.cast(tf.bitwise.bitwise_xor(moved, flip), x.dtype)


@RULES.register("population_count", broadcasts=True)
def _population_count(lowering: Any, equation: Any, x: Any) -> Any:
    return tf.cast(_ones_in(_bits(x)), x.dtype)


@RULES.register("clz", broadcasts=True)
def _count_leading_zeros(lowering: Any, equation: Any, x: Any) -> Any:
    bits = _bits(x)
    # Below the highest one, all become ones.
    for step in (1, 2, 4, 8, 16, 32):
        if step < _width(x):
            bits = tf.bitwise.bitwise_or(bits, _shift_right(bits, np.int64(step)))
    return tf.cast(np.int64(_width(x)) - _ones_in(bits), x.dtype)


def _width(x: Any) -> int:
    return 8 * x.dtype.size


def _bits(x: Any) -> Any:
    """Return the bits of `x` as int64, with zeros in front."""
    return tf.cast(tf.cast(x, _UNSIGNED.get(x.dtype, x.dtype)), tf.int64)


def _shift_amount(y: Any) -> tuple[Any, Any]:
    """Return an amount that every runtime can shift by, and whether the asked one is too large.

    XLA takes amounts as unsigned, so a negative one is too large.
    """
    amount = tf.cast(y, tf.int64)
    too_far = tf.logical_or(tf.less(amount, _ZERO), tf.greater_equal(amount, np.int64(_width(y))))
    return tf.where(too_far, _ZERO, amount), too_far


def _shift_right(bits: Any, amount: Any) -> Any:
    shifted = tf.bitwise.right_shift(tf.cast(bits, tf.uint64), tf.cast(amount, tf.uint64))
    return tf.cast(shifted, tf.int64)


def _ones_in(bits: Any) -> Any:
    """Count ones by adding neighbours, then neighbouring sums (Hacker's Delight, 2nd ed., 5-1)."""
    for step, mask in (
        (1, 0x5555555555555555),
        (2, 0x3333333333333333),
        (4, 0x0F0F0F0F0F0F0F0F),
        (8, 0x00FF00FF00FF00FF),
        (16, 0x0000FFFF0000FFFF),
        (32, 0x00000000FFFFFFFF),
    ):
        low = tf.bitwise.bitwise_and(bits, np.int64(mask))
        high = tf.bitwise.bitwise_and(_shift_right(bits, np.int64(step)), np.int64(mask))
        bits = low + high
    return bits
