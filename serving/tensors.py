"""Named arrays in safetensors files.

The library checks the header and the offsets; this module checks names, element types and shapes
against ports and turns every fault into one kind of error that names the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from serving.errors import BundleError
from serving.manifest import Port

# Safetensors stores little-endian values whatever the machine.
_DTYPES = {
    "BOOL": "?",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}

DTYPE_NAMES = {np.dtype(code).name: name for name, code in _DTYPES.items()}
"""Name of each element type in a safetensors file, by NumPy's."""


def encode_tensors(
    tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> bytes:
    """Returns the content of a safetensors file with copies of `tensors` in C order."""
    # order="C" keeps a zero-dimensional array as it is, which ascontiguousarray does not.
    arrays = {name: np.array(value, order="C") for name, value in tensors.items()}
    return safetensors.numpy.save(arrays, metadata)


def decode_tensors(
    data: bytes,
    file: str | Path,
    error: Callable[[str | Path, str], Exception] = BundleError,
) -> dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file, writable and in native byte order.

    Args:
        data: the file's content.
        file: its name, for messages.
        error: makes the exception from file and reason.

    Raises:
        BundleError: (or what `error` makes) if the content is not valid or has an element type
            that no port can have.
    """
    try:
        entries = safetensors.deserialize(data)
    except (safetensors.SafetensorError, ValueError, OverflowError) as cause:
        raise error(file, f"not a valid safetensors file: {cause}") from cause
    tensors: dict[str, np.ndarray] = {}
    for name, entry in entries:
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise error(file, f"tensor {name!r} has the unsupported dtype {entry['dtype']}")
        array = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
        tensors[name] = array.astype(np.dtype(dtype).newbyteorder("="))
    return tensors


def check_tensors(
    tensors: Mapping[str, np.ndarray],
    expected: Mapping[str, tuple[tuple[int, ...], str]],
    file: str | Path,
    error: Callable[[str | Path, str], Exception] = BundleError,
) -> None:
    """Checks that `tensors` has exactly the expected names, shapes and element types.

    Args:
        tensors: the arrays.
        expected: shape and dtype for each name.
        file: where the arrays come from, for messages.
        error: makes the exception from file and reason.

    Raises:
        BundleError: (or what `error` makes) naming the first tensor that does not fit.
    """
    for name in expected:
        if name not in tensors:
            raise error(file, f"tensor {name!r} is missing; expected are {sorted(expected)}")
    if surplus := sorted(set(tensors) - set(expected)):
        raise error(file, f"unexpected tensor {surplus[0]!r}; expected are {sorted(expected)}")
    for name, (shape, dtype) in expected.items():
        array = tensors[name]
        if array.dtype != np.dtype(dtype):
            raise error(file, f"tensor {name!r} has dtype {array.dtype}, expected {dtype}")
        if array.shape != shape:
            raise error(file, f"tensor {name!r} has shape {array.shape}, expected {shape}")


def port_shapes(
    ports: Iterable[Port], leading: tuple[int, ...] = ()
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns shape (with `leading` axes before it) and dtype of each port, by name."""
    return {port.name: ((*leading, *port.shape), port.dtype) for port in ports}


def byte_count(ports: Iterable[Port]) -> int:
    """Returns how many bytes one row of all ports takes."""
    return sum(math.prod(port.shape) * np.dtype(port.dtype).itemsize for port in ports)
