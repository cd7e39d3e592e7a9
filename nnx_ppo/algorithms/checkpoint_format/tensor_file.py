"""Arrays in safetensors files, with PRNG keys and the types that NumPy does not have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import safetensors
import safetensors.numpy

from nnx_ppo.algorithms.errors import CheckpointError

# What safetensors stores of NumPy's own types; others, such as bfloat16, are stored as unsigned
# integers of the same size, and their type is in the checkpoint's metadata.
NATIVE_KINDS = "biuf"


def to_numpy(array: Any) -> np.ndarray:
    """Returns the numbers of an array or, for PRNG keys, their data."""
    if is_key_array(array):
        array = jax.random.key_data(array)
    return np.asarray(array)


def is_key_array(array: Any) -> bool:
    """Whether an array or its abstract value holds typed PRNG keys; numbers do not."""
    return hasattr(array, "dtype") and jp.issubdtype(array.dtype, jax.dtypes.prng_key)


def encode_tensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Returns the contents of a safetensors file."""
    return safetensors.numpy.save({name: _storable(array) for name, array in tensors.items()})


def decode_tensors(data: bytes, file: Path) -> dict[str, np.ndarray]:
    """Reads the contents of a safetensors file.

    Raises:
        CheckpointError: they are damaged.
    """
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error


def restore_dtype(array: np.ndarray, dtype: str, name: str, file: Path) -> np.ndarray:
    """Gives a stored tensor back the type it had.

    Raises:
        CheckpointError: the tensor is not of that type or of integers of the same size.
    """
    wanted = jp.dtype(dtype)
    if array.dtype == wanted:
        return array
    if wanted.kind not in NATIVE_KINDS and array.dtype == _integers_like(wanted):
        return array.view(wanted)
    raise CheckpointError(
        f"{file}: tensor {name!r} has the type {array.dtype}, expected {dtype} by metadata.json; "
        f"the two files do not belong together"
    )


def _storable(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array).reshape(array.shape)  # the former makes scalars 1-d
    if array.dtype.kind in NATIVE_KINDS and array.dtype.isnative:
        return array
    return array.view(_integers_like(array.dtype))


def _integers_like(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")
