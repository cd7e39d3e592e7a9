"""Weights of an ONNX model in a file of their own."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, numpy_helper

SUFFIX = ".data"
_LEAST_BYTES = 256
_ALIGNMENT = 64


def move_weights(model: onnx.ModelProto, target: Path) -> int:
    """Write the model's large constants beside it, and have the model point there.

    Every tensor begins at a multiple of 64 bytes, so that a reader may map the file.

    Args:
        model: Changed in place.
        target: Where the model itself will be; the weights go to the same name with `.data`.

    Returns:
        Bytes written; 0 if no constant is large enough to be worth it, and then there is no file.
    """
    data = bytearray()
    for tensor in model.graph.initializer:
        content = numpy_helper.to_array(tensor)
        if content.nbytes < _LEAST_BYTES:
            continue
        data += bytes(-len(data) % _ALIGNMENT)
        moved = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        moved.data_location = TensorProto.EXTERNAL
        place = {"location": target.name + SUFFIX, "offset": len(data), "length": content.nbytes}
        for key, value in place.items():
            moved.external_data.add(key=key, value=str(value))
        data += content.astype(content.dtype.newbyteorder("<")).tobytes()
        tensor.CopyFrom(moved)
    if data:
        target.with_name(target.name + SUFFIX).write_bytes(data)
    return len(data)
