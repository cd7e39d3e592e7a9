"""Finds weights that an ONNX model keeps in other files.

The hash of a bundle's model says nothing about such files, their names may lead anywhere, and older
versions of onnxruntime open whatever they are told. So onnxruntime is never left to open any (see
`serving.runtimes.onnx_external`), which takes a look into the model: it is a protocol buffer, and
of that format this module knows just enough to walk down to every tensor. See
https://protobuf.dev/programming-guides/encoding and the field numbers in onnx.proto.
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


def has_external_weights(
    model: bytes | memoryview, kind: str = "model", *, besides_initializers: bool = False
) -> bool:
    """Returns whether any tensor of a model is in another file.

    Args:
        model: content of an ONNX file, or of a message within it.
        kind: of that message.
        besides_initializers: do not count the constants of the model's main graph.

    Raises:
        ValueError: if it is not a protocol buffer, or is nested deeper than `MAX_DEPTH`.
    """
    return _search(memoryview(model), kind, 0, besides_initializers)


def _search(data: memoryview, kind: str, depth: int, besides: bool) -> bool:
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} nested messages")
    inner = _FIELDS[kind]
    for number, value in read_fields(data):
        if kind == "tensor" and number == _DATA_LOCATION and value == 1:
            return True
        child = inner.get(number)
        if besides and depth == 1 and (kind, child) == ("graph", "tensor"):
            continue
        if child == "external":
            return True
        if child and isinstance(value, memoryview) and _search(value, child, depth + 1, besides):
            return True
    return False


def read_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yields number and value of each field of a message.

    Raises:
        ValueError: if it is no protocol buffer.
    """
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        value: int | memoryview
        if wire_type == _VARINT:
            value, position = read_varint(data, position)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type)
            if wire_type == _BYTES:
                size, position = read_varint(data, position)
            if size is None or position + size > len(data):
                raise ValueError("not a protocol buffer")
            value = data[position : position + size]
            position += size
        yield number, value


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Returns the integer at a position of a message, and the position after it."""
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
