"""What convolution and pooling share: spreading out, padding and sliding over an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.registry import NotLowerable


def dilate(lowering: Any, x: Any, factors: Sequence[int], filler: Any = 0) -> Any:
    """Put `factor - 1` fillers between neighbours along each axis."""
    for axis, factor in enumerate(factors):
        if factor == 1:
            continue
        length = _length(x, axis)
        if length < 2:
            continue
        # Each element gets a new axis with the fillers behind it, which then joins the old one;
        # the fillers behind the last element are cut off.
        spread = tf.expand_dims(x, axis + 1)
        behind = [[0, 0]] * spread.shape.rank
        behind[axis + 1] = [0, factor - 1]
        spread = tf.pad(spread, behind, constant_values=_scalar(x, filler))
        known = x.shape.as_list()
        known[axis] = length * factor
        shape = [-1 if size is None else size for size in known]
        if shape.count(-1) > 1:
            raise NotLowerable("dilation of an array with several axes of any length")
        x = take(tf.reshape(spread, shape), axis, 0, length * factor - factor + 1)
    return x


def pad(x: Any, padding: Sequence[tuple[int, int]], filler: Any) -> Any:
    """Pad each axis by `(low, high)` with `filler`; negative numbers cut off."""
    for axis, (low, high) in enumerate(padding):
        if low < 0 or high < 0:
            length = _length(x, axis)
            begin, end = max(0, -low), length - max(0, -high)
            if begin > end:
                raise NotLowerable("padding that cuts off more than there is")
            x = take(x, axis, begin, end)
    outward = [[max(0, low), max(0, high)] for low, high in padding]
    if any(low or high for low, high in outward):
        x = tf.pad(x, outward, constant_values=_scalar(x, filler))
    return x


def window_slice(x: Any, axis: int, offset: int, reach: int, stride: int) -> Any:
    """Return element `offset` of every window of length `reach` along an axis."""
    count = (_length(x, axis) - reach) // stride + 1
    if count < 1:
        raise NotLowerable("a window longer than what it slides over")
    return take(x, axis, offset, offset + (count - 1) * stride + 1, stride)


def take(x: Any, axis: int, begin: int, end: int, stride: int = 1) -> Any:
    """Return a slice along one axis, `x` itself if that is all of it."""
    if begin == 0 and end == x.shape[axis] and stride == 1:
        return x
    return x[(*[slice(None)] * axis, slice(begin, end, stride))]


def _length(x: Any, axis: int) -> int:
    length = x.shape[axis]
    if length is None:
        raise NotLowerable("a window over the batch axis")
    return int(length)


def _scalar(x: Any, value: Any) -> Any:
    return np.asarray(value, x.dtype.as_numpy_dtype)
