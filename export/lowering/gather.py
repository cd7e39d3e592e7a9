"""Rules for `gather`: indexing with arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.dynamic_slicing import read_window
from export.lowering.elementwise import select
from export.lowering.half_precision import computed_dtype
from export.lowering.registry import RULES
from export.lowering.windows import (
    Windows,
    along_batches,
    flat_positions,
    gather_windows,
    mode_of,
    window_starts,
)


@RULES.register("gather")
def _gather(lowering: Any, equation: Any, operand: Any, indices: Any) -> Any:
    """Take windows of an operand, by the cheapest operation that does.

    Where an index is outside, the mode `fill` puts a value there. Plain `x[i]` promises to stay
    inside and is not checked; XLA moves what breaks the promise, where other runtimes would stop.
    """
    windows = gather_windows(equation)
    mode = "check" if mode_of(equation) == "fill_or_drop" else "clip"
    starts, valid = window_starts(lowering, windows, indices, mode)
    taken = _take(lowering, windows, operand, starts)
    if valid is None:
        return taken
    return select(
        along_batches(lowering, windows, valid),
        taken,
        _fill_value(equation.params, equation.outvars[0].aval),
    )


def _take(lowering: Any, windows: Windows, operand: Any, starts: dict[int, Any]) -> Any:
    if len(windows.index_shape) == 1:
        return _one_window(lowering, windows, operand, starts)
    whole = [a for a in range(len(windows.sizes)) if _is_whole(windows, a)]
    single = all(windows.sizes[axis] == 1 for axis in windows.indexed_axes)
    if single and len(whole) + len(windows.indexed_axes + windows.operand_batching) == len(
        windows.sizes
    ):
        if len(windows.indexed_axes) == 1 and not windows.operand_batching:
            return _along_one_axis(windows, operand, starts)
        if _is_rows(windows, whole):
            return _rows(windows, operand, starts, whole)
    flat = tf.reshape(operand, [-1])
    return tf.gather(flat, flat_positions(lowering, windows, starts))


def _is_whole(windows: Windows, axis: int) -> bool:
    return (
        axis not in windows.indexed_axes
        and axis in windows.window_axes
        and windows.sizes[axis] == windows.operand_shape[axis]
    )


def _one_window(lowering: Any, windows: Windows, operand: Any, starts: dict[int, Any]) -> Any:
    """Take one slice: `x[:, 1:]`, `x[:, -1]`, `x[:, i]`, which JAX writes as a gather too."""
    begin = [starts.get(axis, 0) for axis in range(len(windows.sizes))]
    taken = read_window(lowering, operand, begin, windows.sizes, windows.operand_shape)
    # Axes of one that the result drops; the order of the others is the operand's.
    return tf.reshape(taken, lowering.shape(windows.grid_shape))


def _along_one_axis(windows: Windows, operand: Any, starts: dict[int, Any]) -> Any:
    """Take slices along one axis: `x[:, i]` with an array, `jnp.take`, embeddings."""
    ((axis, indices),) = starts.items()
    taken = tf.gather(operand, indices, axis=axis)
    # tf.gather puts the index axes where `axis` was; the jaxpr says where the window axes belong.
    n_index = len(windows.index_shape) - 1
    current: list[Any] = [("window", a) for a in range(axis)]
    current += [("index", i) for i in range(n_index)]
    if axis in windows.window_axes:
        taken = tf.expand_dims(taken, axis + n_index)
        current.append(("window", axis))
    current += [("window", a) for a in range(axis + 1, len(windows.operand_shape))]
    wanted: list[Any] = [None] * len(windows.grid_shape)
    for place, source in zip(windows.window_places, windows.window_axes, strict=True):
        wanted[place] = ("window", source)
    for index, place in enumerate(windows.batch_places):
        wanted[place] = ("index", index)
    order = [current.index(item) for item in wanted]
    return taken if order == list(range(len(order))) else tf.transpose(taken, order)


def _is_rows(windows: Windows, whole: list[int]) -> bool:
    """Return whether batches lead in the indices and whole axes come last in the output."""
    n_index = len(windows.index_shape) - 1
    return (
        bool(windows.indexed_axes)
        and windows.index_batching == tuple(range(len(windows.index_batching)))
        and windows.window_axes == tuple(whole)
        and windows.window_places == tuple(range(n_index, n_index + len(whole)))
    )


def _rows(windows: Windows, operand: Any, starts: dict[int, Any], whole: list[int]) -> Any:
    """Take one element or slice per row: `x[jnp.arange(b), i]`, `take_along_axis`."""
    order = [*windows.operand_batching, *windows.indexed_axes, *whole]
    if order != list(range(len(order))):
        operand = tf.transpose(operand, order)
    columns = [starts[axis] for axis in windows.indexed_axes]
    return tf.gather_nd(
        operand, tf.stack(columns, axis=-1), batch_dims=len(windows.operand_batching)
    )


def _fill_value(params: Any, aval: Any) -> np.ndarray:
    """Return what JAX fills in for an index outside: NaN, the lowest integer, True."""
    dtype = np.dtype(computed_dtype(aval.dtype).as_numpy_dtype)
    fill = params.get("fill_value")
    if fill is None:
        if dtype.kind == "f":
            fill = np.nan
        elif dtype.kind == "i":
            fill = np.iinfo(dtype).min
        elif dtype.kind == "u":
            fill = np.iinfo(dtype).max
        else:
            fill = True
    return np.asarray(fill, dtype)
