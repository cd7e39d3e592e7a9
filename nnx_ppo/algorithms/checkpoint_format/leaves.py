"""Leaves of a pytree: what they are called, what they were, and the tensors that hold them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jp
import msgspec
import numpy as np

from nnx_ppo.algorithms.checkpoint_format.tensor_file import (
    is_key_array,
    restore_dtype,
    to_numpy,
)
from nnx_ppo.algorithms.errors import CheckpointError

JAX, NUMPY, PYTHON = "jax", "numpy", "python"


class LeafRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One leaf."""

    path: str
    """Where it is in its tree, as JAX writes it."""
    tensor: str | None
    """Name of the tensor that holds it; None where only shape and type are recorded."""
    shape: list[int]
    dtype: str
    """Type of the numbers; of PRNG keys, that of their data."""
    kind: str
    """Whether it was an array of JAX, one of NumPy, or a Python number."""
    key_impl: str | None
    """For PRNG keys, the generator they belong to."""


def record_leaves(
    tree: Any, prefix: str, tensors: dict[str, np.ndarray], file: Path
) -> list[LeafRecord]:
    """Records the leaves of a tree and adds their values to ``tensors``.

    Args:
        tree: A pytree of arrays and numbers.
        prefix: First part of the tensors' names.
        tensors: Where to add them.
        file: The file they are going to, for errors.

    Raises:
        CheckpointError: a leaf is neither an array nor a number.
    """
    records = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = unused_name(tensor_name(prefix, path), tensors)
        record = describe_leaf(path, leaf, name, file)
        tensors[name] = to_numpy(leaf)
        records.append(record)
    return records


def describe_leaf(path: Any, leaf: Any, tensor: str | None, file: Path) -> LeafRecord:
    """Records a leaf without its value."""
    kind, key_impl, shape = PYTHON, None, np.shape(leaf)
    if isinstance(leaf, jax.Array):
        kind = JAX
        if is_key_array(leaf):
            key_impl = str(jax.random.key_impl(leaf))
    elif isinstance(leaf, np.ndarray | np.generic):
        kind = NUMPY
    elif not isinstance(leaf, bool | int | float):
        raise CheckpointError(
            f"{file}: the leaf {jax.tree_util.keystr(path)} is a {type(leaf).__name__}; only "
            f"arrays and numbers can be written to a checkpoint"
        )
    dtype = to_numpy(leaf).dtype.name
    return LeafRecord(jax.tree_util.keystr(path), tensor, list(shape), dtype, kind, key_impl)


def restore_leaf(record: LeafRecord, tensors: Mapping[str, np.ndarray], file: Path) -> Any:
    """Gives a leaf back as it was: an array of JAX or NumPy, or a Python number.

    Raises:
        CheckpointError: its tensor is missing or is not what was recorded.
    """
    name = record.tensor
    if name is None or name not in tensors:
        raise CheckpointError(f"{file} lacks the tensor {name!r} that metadata.json lists")
    array = restore_dtype(tensors[name], record.dtype, name, file)
    if record.key_impl is not None:
        keys = jax.random.wrap_key_data(jp.asarray(array), impl=record.key_impl)
        array = keys
    if list(array.shape) != record.shape:
        raise CheckpointError(
            f"{file}: tensor {name!r} has shape {list(array.shape)}, expected {record.shape} by "
            f"metadata.json; the two files do not belong together"
        )
    if record.kind == PYTHON:
        return array.item()
    if record.kind == NUMPY or isinstance(array, jax.Array):
        return array
    return jp.asarray(array)


def abstract_leaf(record: LeafRecord) -> jax.ShapeDtypeStruct:
    """Returns shape and type of a recorded leaf."""
    return jax.ShapeDtypeStruct(tuple(record.shape), jp.dtype(record.dtype))


def tensor_name(prefix: str, path: Any) -> str:
    """Joins the parts of a tree path by dots, leaving out the ``value`` of nnx Variables."""
    parts = [prefix] if prefix else []
    for entry in path:
        if isinstance(entry, jax.tree_util.GetAttrKey):
            if entry.name == "value" and not prefix:
                continue
            parts.append(entry.name)
        elif isinstance(entry, jax.tree_util.SequenceKey):
            parts.append(str(entry.idx))
        else:
            parts.append(str(getattr(entry, "key", entry)))
    return ".".join(parts)


def unused_name(name: str, taken: Mapping[str, Any]) -> str:
    """Tells apart names that only dots inside keys make equal."""
    unused, count = name, 1
    while unused in taken:
        count += 1
        unused = f"{name}#{count}"
    return unused
