"""Reads weights that an ONNX model keeps in a file of its own, without letting onnxruntime open it.

The file is one that the manifest lists, so its content is checked like that of the model. A model
says for each such tensor where it lies; this module turns that into arrays, which the runtime hands
to onnxruntime. What points anywhere else is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from serving.runtimes.onnx_weights import has_external_weights, read_fields, read_varint

# Numbers of `TensorProto.DataType`.
_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}


@dataclasses.dataclass(frozen=True)
class ExternalTensor:
    """Where a constant of the model lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    location: str
    """Name of the file, relative to the model's directory."""
    offset: int
    length: int | None
    """Bytes; None for as many as dtype and shape take."""

    def read(self, content: bytes) -> np.ndarray:
        """Returns the tensor from its file's content, as an array of its own.

        Raises:
            ValueError: if the tensor reaches beyond the file, or has another size than it says.
        """
        dtype = np.dtype(self.dtype).newbyteorder("<")
        count = math.prod(self.shape)
        size = count * dtype.itemsize
        if self.length not in (None, size):
            raise ValueError(f"{self.name!r} takes {size} bytes, the model says {self.length}")
        if self.offset < 0 or self.offset + size > len(content):
            raise ValueError(
                f"{self.name!r} ends at byte {self.offset + size} of {len(content)} in "
                f"{self.location!r}"
            )
        values = np.frombuffer(content, dtype, count, self.offset).reshape(self.shape)
        return values.astype(self.dtype)


def read_external(model: bytes, read_file: Callable[[str], bytes]) -> dict[str, np.ndarray]:
    """Returns the constants that a model keeps in other files, by name.

    Args:
        model: content of the ONNX file.
        read_file: returns the content of a file beside the model; raises for one that must not be
            read.

    Raises:
        ValueError: if `model` is no ONNX model, has such weights elsewhere than among the constants
            of its main graph, or describes one wrongly.
    """
    if has_external_weights(model, besides_initializers=True):
        raise ValueError("keeps weights of a loop, branch or function in other files; embed them")
    tensors = [
        _parse(value)
        for number, graph in read_fields(memoryview(model))
        if number == 7 and isinstance(graph, memoryview)
        for field, value in read_fields(graph)
        if field == 5 and isinstance(value, memoryview) and has_external_weights(value, "tensor")
    ]
    contents = {name: read_file(name) for name in sorted({t.location for t in tensors})}
    return {tensor.name: tensor.read(contents[tensor.location]) for tensor in tensors}


def _parse(data: memoryview) -> ExternalTensor:
    shape: list[int] = []
    name, kind = "", 0
    place: dict[str, str] = {}
    for number, value in read_fields(data):
        if number == 1:
            shape += _integers(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8 and isinstance(value, memoryview):
            name = bytes(value).decode("utf-8")
        elif number == 13 and isinstance(value, memoryview):
            entry = {n: bytes(v).decode("utf-8") for n, v in read_fields(value) if not _is_int(v)}
            place[entry.get(1, "")] = entry.get(2, "")
    if kind not in _DTYPES or "location" not in place:
        raise ValueError(f"tensor {name!r} says neither its type nor its file")
    length = place.get("length")
    return ExternalTensor(
        name=name,
        dtype=_DTYPES[kind],
        shape=tuple(shape),
        location=place["location"],
        offset=int(place.get("offset", "0")),
        length=None if length is None else int(length),
    )


def _integers(value: int | memoryview) -> list[int]:
    """Returns repeated integers, packed or not."""
    if not isinstance(value, memoryview):
        return [value]
    found, position = [], 0
    while position < len(value):
        number, position = read_varint(value, position)
        found.append(number)
    return found


def _is_int(value: int | memoryview) -> bool:
    return isinstance(value, int)
