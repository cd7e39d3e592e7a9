"""Rules for `gather`: indexing with arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from export.lowering.elementwise import select
from export.lowering.registry import RULES, NotLowerable


@RULES.register("gather")
def _gather(lowering: Any, equation: Any, operand: Any, indices: Any) -> Any:
    """Take slices of an operand along one axis: `x[i]`, `x[:, i]`, `jnp.take`, embeddings."""
    params = equation.params
    numbers = params["dimension_numbers"]
    sizes = params["slice_sizes"]
    operand_shape = equation.invars[0].aval.shape
    index_shape = equation.invars[1].aval.shape
    aval = equation.outvars[0].aval
    if len(index_shape) == 1 and not tuple(numbers.operand_batching_dims):
        return _gather_one_slice(lowering, equation, operand, indices)
    if tuple(numbers.operand_batching_dims) or len(numbers.start_index_map) != 1:
        return _gather_rows(lowering, equation, operand, indices)
    axis = int(numbers.start_index_map[0])
    others_whole = all(sizes[a] == operand_shape[a] for a in range(len(operand_shape)) if a != axis)
    if not others_whole or int(sizes[axis]) != 1:
        raise NotLowerable("a gather of partial slices along several axes")
    indices = tf.reshape(indices, lowering.shape(index_shape[:-1]))
    indices, valid = _bounded(lowering, params, indices, operand_shape[axis])
    taken = tf.gather(operand, indices, axis=axis)
    # tf.gather puts the index axes where `axis` was; the jaxpr says where the slice axes belong.
    n_index = len(index_shape) - 1
    slice_axes = [a for a in range(len(operand_shape)) if a != axis]
    if axis not in numbers.collapsed_slice_dims:
        taken = tf.expand_dims(taken, axis + n_index)
        slice_axes = list(range(len(operand_shape)))
    return _place(taken, valid, axis, n_index, slice_axes, numbers.offset_dims, aval, params)


def _gather_one_slice(lowering: Any, equation: Any, operand: Any, indices: Any) -> Any:
    """Take one slice: `x[:, 1:]`, `x[:, -1]`, `x[:, i]`, which JAX writes as a gather too."""
    params = equation.params
    numbers = params["dimension_numbers"]
    sizes = params["slice_sizes"]
    shape = equation.invars[0].aval.shape
    starts: list[Any] = [0] * len(shape)
    valid = None
    for column, axis in enumerate(int(a) for a in numbers.start_index_map):
        limit = shape[axis] - sizes[axis] + 1
        starts[axis], inside = _bounded(lowering, params, indices[column], limit)
        if inside is not None:
            valid = inside if valid is None else tf.logical_and(valid, inside)
    pieces: list[Any] = []
    for start, size, extent in zip(starts, sizes, shape, strict=True):
        known = start if isinstance(start, int) else tf.get_static_value(start)
        if size == extent:
            pieces.append(slice(None))
        elif known is not None:
            pieces.append(slice(int(known), int(known) + int(size)))
        else:
            pieces.append(slice(start, start + lowering.dimension(size)))
    taken = operand[tuple(pieces)]
    # An axis of one that the result drops; the order of the others is the operand's.
    taken = tf.reshape(taken, lowering.shape(equation.outvars[0].aval.shape))
    if valid is None:
        return taken
    return select(valid, taken, _fill_value(params, equation.outvars[0].aval))


def _place(
    taken: Any,
    valid: Any,
    axis: int,
    n_index: int,
    slice_axes: list[int],
    offset_dims: Any,
    aval: Any,
    params: Any,
) -> Any:
    """Transpose index and slice axes to their places in the output and fill what is outside."""
    rank = len(aval.shape)
    batch_places = [a for a in range(rank) if a not in offset_dims]
    before = [a for a in slice_axes if a < axis]
    after = [a for a in slice_axes if a >= axis]
    current = [("slice", a) for a in before] + [("index", i) for i in range(n_index)]
    current += [("slice", a) for a in after]
    wanted: list[Any] = [None] * rank
    for place, source in zip(offset_dims, slice_axes, strict=True):
        wanted[int(place)] = ("slice", source)
    for place, index in zip(batch_places, range(n_index), strict=True):
        wanted[place] = ("index", index)
    order = [current.index(item) for item in wanted]
    if order != list(range(rank)):
        taken = tf.transpose(taken, order)
    if valid is None:
        return taken
    for place in sorted(int(a) for a in offset_dims):
        valid = tf.expand_dims(valid, place)
    return select(valid, taken, _fill_value(params, aval))


def _gather_rows(lowering: Any, equation: Any, operand: Any, indices: Any) -> Any:
    """Take one element or slice per row: `x[jnp.arange(b), i]`, `take_along_axis`."""
    params = equation.params
    numbers = params["dimension_numbers"]
    sizes = params["slice_sizes"]
    operand_shape = equation.invars[0].aval.shape
    index_shape = equation.invars[1].aval.shape
    aval = equation.outvars[0].aval
    batching = [int(a) for a in numbers.operand_batching_dims]
    indexed = [int(a) for a in numbers.start_index_map]
    whole = [a for a in range(len(operand_shape)) if a not in (*batching, *indexed)]
    collapsed = set(numbers.collapsed_slice_dims) | set(batching)
    if any(sizes[a] != operand_shape[a] for a in whole) or any(
        int(sizes[a]) != 1 or a not in collapsed for a in indexed
    ):
        raise NotLowerable("a gather of partial slices")
    n_batch = len(batching)
    n_index = len(index_shape) - 1
    if n_batch and ([int(a) for a in numbers.start_indices_batching_dims] != list(range(n_batch))):
        raise NotLowerable("a gather whose batching axes do not lead")
    expected = tuple(range(n_index, n_index + len(whole)))
    if tuple(int(a) for a in numbers.offset_dims) != expected:
        raise NotLowerable("a gather whose slice axes do not come last")
    operand = tf.transpose(operand, [*batching, *indexed, *whole])
    limits = [operand_shape[a] for a in indexed]
    columns, valid = [], None
    for column, limit in enumerate(limits):
        bounded, inside = _bounded(lowering, params, indices[..., column], limit)
        columns.append(bounded)
        if inside is not None:
            valid = inside if valid is None else tf.logical_and(valid, inside)
    taken = tf.gather_nd(operand, tf.stack(columns, axis=-1), batch_dims=n_batch)
    if valid is None:
        return taken
    return select(
        tf.reshape(valid, tf.concat([tf.shape(valid), [1] * len(whole)], 0)),
        taken,
        _fill_value(params, aval),
    )


def _bounded(lowering: Any, params: Any, indices: Any, limit: Any) -> tuple[Any, Any]:
    """Return indices that are inside, and a mask of those that were, where it is needed."""
    indices = tf.cast(indices, tf.int32)
    mode = str(params["mode"]).rsplit(".", 1)[-1].upper()
    known = tf.get_static_value(indices)
    last = lowering.dimension(limit) - 1
    if known is not None and isinstance(last, int) and np.all((known >= 0) & (known <= last)):
        return indices, None
    clamped = tf.minimum(tf.maximum(indices, 0), last)
    # Plain `x[i]` promises to stay inside and is not checked; XLA clamps what breaks the promise,
    # where other runtimes would stop.
    if "CLIP" in mode or "PROMISE" in mode:
        return clamped, None
    return clamped, tf.equal(clamped, indices)


def _fill_value(params: Any, aval: Any) -> np.ndarray:
    """Return what JAX fills in for an index outside: NaN, the lowest integer, True."""
    dtype = np.dtype(aval.dtype)
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
