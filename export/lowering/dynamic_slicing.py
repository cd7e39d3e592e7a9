"""Rules for slices whose start is computed: reading and writing one window of an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from export.lowering.registry import RULES
from export.lowering.windows import bounded


@RULES.register("dynamic_slice")
def _dynamic_slice(lowering: Any, equation: Any, x: Any, *starts: Any) -> Any:
    sizes = equation.params["slice_sizes"]
    shape = equation.invars[0].aval.shape
    return read_window(lowering, x, _clamped(lowering, starts, sizes, shape), sizes, shape)


@RULES.register("dynamic_update_slice")
def _dynamic_update_slice(lowering: Any, equation: Any, x: Any, update: Any, *starts: Any) -> Any:
    sizes = equation.invars[1].aval.shape
    shape = equation.invars[0].aval.shape
    begin = _clamped(lowering, starts, sizes, shape)
    return write_window(lowering, x, update, begin, sizes, shape)


def _clamped(lowering: Any, starts: Any, sizes: Any, shape: Any) -> list[Any]:
    """Return starts moved so that the window lies inside, as XLA does."""
    begin: list[Any] = []
    for start, size, extent in zip(starts, sizes, shape, strict=True):
        limit = 1 if extent == size else extent - size + 1
        begin.append(bounded(lowering, "clip", start, limit)[0])
    return begin


def read_window(
    lowering: Any, x: Any, begin: Sequence[Any], sizes: Sequence[Any], shape: Sequence[Any]
) -> Any:
    """Return the window of `x` that starts at `begin`.

    Args:
        lowering: Knows the batch size.
        x: An array.
        begin: One scalar per axis, such that the window lies inside.
        sizes: Length of the window along each axis.
        shape: Of `x`.
    """
    pieces = []
    for start, size, extent in zip(begin, sizes, shape, strict=True):
        if size == extent:
            pieces.append(slice(None))
        else:
            first = _known(start)
            pieces.append(slice(first, first + lowering.dimension(size)))
    return x[tuple(pieces)]


def write_window(
    lowering: Any,
    x: Any,
    window: Any,
    begin: Sequence[Any],
    sizes: Sequence[Any],
    shape: Sequence[Any],
) -> Any:
    """Return `x` with the window that starts at `begin` replaced; arguments as `read_window`."""
    moved = [axis for axis in range(len(shape)) if shape[axis] != sizes[axis]]
    return _write(lowering, x, window, begin, sizes, moved)


def _write(lowering: Any, x: Any, window: Any, begin: Any, sizes: Any, moved: list[int]) -> Any:
    if not moved:
        return tf.identity(window)
    # Along the first axis: what lies before the window, its rows, and what comes after them.
    axis, *others = moved
    first = _known(begin[axis])
    end = first + lowering.dimension(sizes[axis])
    rows = window
    if others:
        rows = _write(lowering, x[_along(axis, first, end)], window, begin, sizes, others)
    return tf.concat([x[_along(axis, None, first)], rows, x[_along(axis, end, None)]], axis=axis)


def _known(start: Any) -> Any:
    value = start if isinstance(start, int) else tf.get_static_value(start)
    return start if value is None else int(value)


def _along(axis: int, start: Any, stop: Any) -> tuple[Any, ...]:
    return (*([slice(None)] * axis), slice(start, stop))
