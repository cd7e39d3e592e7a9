"""Where the windows of a `gather` or `scatter` lie in the operand, as flat positions.

Both primitives move windows between an operand and a second array, here called the grid: the output
of a gather, the updates of a scatter. An axis of the grid counts either within a window or through
the indices. The position of a grid element is the sum, over the operand's axes, of where its window
starts, how far into the window it lies, and which batch it belongs to, times the axis's stride.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.registry import NotLowerable


@dataclasses.dataclass(frozen=True)
class Windows:
    """The dimension numbers of a gather or scatter in common terms."""

    operand_shape: tuple[Any, ...]
    index_shape: tuple[Any, ...]
    grid_shape: tuple[Any, ...]
    sizes: tuple[Any, ...]
    """Length of a window along each axis of the operand."""
    window_places: tuple[int, ...]
    """Axes of the grid that count within a window."""
    window_axes: tuple[int, ...]
    """Axes of the operand that they belong to."""
    indexed_axes: tuple[int, ...]
    """Axes of the operand that the columns of the indices give starts for."""
    operand_batching: tuple[int, ...]
    """Axes of the operand along which each batch has a window of its own."""
    index_batching: tuple[int, ...]
    """Axes of the indices that they belong to."""

    @property
    def batch_places(self) -> list[int]:
        """Axes of the grid that count through the indices, in the order of the indices' axes."""
        return [a for a in range(len(self.grid_shape)) if a not in self.window_places]


def gather_windows(equation: Any) -> Windows:
    """Describe the windows of a `gather`."""
    numbers = equation.params["dimension_numbers"]
    operand, indices = (tuple(atom.aval.shape) for atom in equation.invars[:2])
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    return Windows(
        operand_shape=operand,
        index_shape=indices,
        grid_shape=tuple(equation.outvars[0].aval.shape),
        sizes=tuple(equation.params["slice_sizes"]),
        window_places=tuple(int(a) for a in numbers.offset_dims),
        window_axes=tuple(a for a in range(len(operand)) if a not in dropped),
        indexed_axes=tuple(int(a) for a in numbers.start_index_map),
        operand_batching=tuple(int(a) for a in numbers.operand_batching_dims),
        index_batching=tuple(int(a) for a in numbers.start_indices_batching_dims),
    )


def scatter_windows(equation: Any) -> Windows:
    """Describe the windows of a `scatter` and its kin."""
    numbers = equation.params["dimension_numbers"]
    operand, indices, updates = (tuple(atom.aval.shape) for atom in equation.invars[:3])
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window_axes = tuple(a for a in range(len(operand)) if a not in dropped)
    sizes: list[Any] = [1] * len(operand)
    for axis, place in zip(window_axes, numbers.update_window_dims, strict=True):
        sizes[axis] = updates[int(place)]
    return Windows(
        operand_shape=operand,
        index_shape=indices,
        grid_shape=updates,
        sizes=tuple(sizes),
        window_places=tuple(int(a) for a in numbers.update_window_dims),
        window_axes=window_axes,
        indexed_axes=tuple(int(a) for a in numbers.scatter_dims_to_operand_dims),
        operand_batching=tuple(int(a) for a in numbers.operand_batching_dims),
        index_batching=tuple(int(a) for a in numbers.scatter_indices_batching_dims),
    )


def flat_positions(lowering: Any, windows: Windows, starts: dict[int, Any]) -> Any:
    """Return the position of every element of the grid in the flattened operand.

    Args:
        lowering: Knows the batch size.
        windows: What `starts` belong to.
        starts: Operand axis → starts along it, one for each vector of indices.

    Returns:
        int32, of the grid's shape.
    """
    terms: dict[int, list[Any]] = {axis: [] for axis in range(len(windows.operand_shape))}
    for axis, start in starts.items():
        terms[axis].append(along_batches(lowering, windows, start))
    for place, axis in zip(windows.window_places, windows.window_axes, strict=True):
        terms[axis].append(_count(lowering, windows, place))
    batch_places = windows.batch_places
    for axis, index_axis in zip(windows.operand_batching, windows.index_batching, strict=True):
        terms[axis].append(_count(lowering, windows, batch_places[index_axis]))
    total: Any = None
    for axis, stride in enumerate(_strides(lowering, windows.operand_shape)):
        for term in terms[axis]:
            scaled = term if isinstance(stride, int) and stride == 1 else term * stride
            total = scaled if total is None else total + scaled
    if total is None:
        total = tf.constant(0)
    return tf.broadcast_to(total, lowering.exact_shape(windows.grid_shape))


def along_batches(lowering: Any, windows: Windows, values: Any) -> Any:
    """Return one value per vector of indices with an axis of one for each window axis."""
    sizes: list[Any] = [1] * len(windows.grid_shape)
    for place, size in zip(windows.batch_places, windows.index_shape[:-1], strict=True):
        sizes[place] = size
    return tf.reshape(values, lowering.shape(sizes))


def _count(lowering: Any, windows: Windows, place: int) -> Any:
    sizes: list[Any] = [1] * len(windows.grid_shape)
    sizes[place] = windows.grid_shape[place]
    return tf.reshape(tf.range(lowering.dimension(sizes[place])), lowering.shape(sizes))


def _strides(lowering: Any, shape: Sequence[Any]) -> list[Any]:
    strides: list[Any] = []
    stride: Any = 1
    for size in reversed(shape):
        strides.insert(0, stride)
        stride = stride * lowering.dimension(size)
    return strides


def window_starts(
    lowering: Any, windows: Windows, indices: Any, mode: str
) -> tuple[dict[int, Any], Any]:
    """Return the starts by operand axis, and which windows lie inside, None if all do.

    Starts are inside whatever the indices are, so that no runtime stops at a wild one.

    Args:
        lowering: Knows the batch size.
        windows: What `indices` belong to.
        indices: `[..., one column per indexed axis]`.
        mode: `clip` moves windows inside, `check` says which had to be moved.
    """
    starts: dict[int, Any] = {}
    valid = None
    known = tf.get_static_value(indices)
    for column, axis in enumerate(windows.indexed_axes):
        extent, size = windows.operand_shape[axis], windows.sizes[axis]
        limit = 1 if extent == size else extent - size + 1
        start = indices[..., column] if known is None else tf.constant(known[..., column])
        starts[axis], inside = bounded(lowering, mode, start, limit)
        if inside is not None:
            valid = inside if valid is None else tf.logical_and(valid, inside)
    return starts, valid


def bounded(lowering: Any, mode: str, indices: Any, limit: Any) -> tuple[Any, Any]:
    """Return int32 indices moved inside `[0, limit)` and a mask of those that were inside.

    The mask is None where it is not asked for or known to hold.

    Args:
        lowering: Knows the batch size.
        mode: `clip` or `check`.
        indices: Integers of any type, compared in their own.
        limit: An int or a dimension.
    """
    last = lowering.dimension(limit) - 1
    known = tf.get_static_value(indices)
    if known is not None and isinstance(last, int) and np.all((known >= 0) & (known <= last)):
        return tf.cast(indices, tf.int32), None
    indices = _comparable(indices)
    highest = tf.cast(last, indices.dtype)
    inside = tf.minimum(tf.maximum(indices, tf.zeros([], indices.dtype)), highest)
    mask = None if mode == "clip" else tf.equal(inside, indices)
    return tf.cast(inside, tf.int32), mask


def _comparable(indices: Any) -> Any:
    """Return indices in a type that every runtime compares, with none moved inside by it."""
    if indices.dtype in (tf.int32, tf.int64):
        return indices
    if indices.dtype == tf.uint64:
        bits = tf.cast(indices, tf.int64)
        # The upper half comes out negative; no array reaches that far anyway.
        return tf.where(tf.less(bits, np.int64(0)), np.int64(tf.int64.max), bits)
    return tf.cast(indices, tf.int64 if indices.dtype == tf.uint32 else tf.int32)


def mode_of(equation: Any) -> str:
    """Return the mode of a gather or scatter: `clip`, `fill_or_drop` or `promise_in_bounds`."""
    mode = str(equation.params["mode"]).rsplit(".", 1)[-1].lower()
    for known in ("clip", "fill", "promise"):
        if known in mode:
            return {"clip": "clip", "fill": "fill_or_drop", "promise": "promise_in_bounds"}[known]
    raise NotLowerable(f"indexing in the mode {mode}; use 'clip', 'fill' or 'promise_in_bounds'")
