"""Finds weights that an ONNX model keeps in other files.

The hash of a bundle's model says nothing about such files, their names may lead anywhere, and older
versions of onnxruntime open whatever they are told. So a model that has any is not loaded, which
takes a look into the file: an ONNX model is a protocol buffer, and of that format this module knows
just enough to walk down to every tensor. See https://protobuf.dev/programming-guides/encoding and
the field numbers in onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_DEPTH = 64

# For each message the fields to follow: number to the kind of message that is in it.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DATA_LOCATION = 14


def has_external_weights(model: bytes) -> bool:
    """Returns whether any tensor of a model is in another file.

    Args:
        model: content of an ONNX file.

    Raises:
        ValueError: if it is not a protocol buffer, or is nested deeper than `MAX_DEPTH`.
    """
    return _search(memoryview(model), "model", 0)


def _search(data: memoryview, kind: str, depth: int) -> bool:
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} nested messages")
    inner = _FIELDS[kind]
    for number, value in _read_fields(data):
        if kind == "tensor" and number == _DATA_LOCATION and value == 1:
            return True
        child = inner.get(number)
        if child == "external":
            return True
        if child and isinstance(value, memoryview) and _search(value, child, depth + 1):
            return True
    return False


def _read_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yields number and value of each field of a message."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        value: int | memoryview
        if wire_type == _VARINT:
            value, position = _read_varint(data, position)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type)
            if wire_type == _BYTES:
                size, position = _read_varint(data, position)
            if size is None or position + size > len(data):
                raise ValueError("not a protocol buffer")
            value = data[position : position + size]
            position += size
        yield number, value


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("not a protocol buffer")
