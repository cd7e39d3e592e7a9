"""Gives tensors of an ONNX graph without an axis beside the batch one more, of size one.

Triton keeps no state without such an axis and hands over no control input without it. The graph
itself stays as it is: a reshape is put before the inputs concerned and after the outputs. The file
is a protocol buffer, of which this module knows just enough to do that, see
`serving.runtimes.onnx_weights`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from serving.runtimes.onnx_weights import read_fields

# Field numbers in onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATION = 1, 2, 3, 4
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TYPE_TENSOR = 1
_TENSOR_TYPE_ELEMENT, _TENSOR_TYPE_SHAPE = 1, 2
_SHAPE_DIMENSION = 1
_DIMENSION_VALUE, _DIMENSION_NAME = 1, 2
_TENSOR_DIMS, _TENSOR_ELEMENT, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_INT64 = 7

COLUMN = "/column"
"""Ending of the name that an input or output has with its additional axis."""


def add_columns(model: bytes, names: Collection[str]) -> bytes:
    """Returns the model with inputs and outputs [B] as [B, 1], `COLUMN` added to their names.

    Args:
        model: content of an ONNX file of opset 5 or newer.
        names: the inputs and outputs; all others stay as they are.

    Raises:
        ValueError: if the model is no protocol buffer, or has not all of `names`.
    """
    if not names:
        return model
    fields = list(read_fields(memoryview(model)))
    return b"".join(
        _field(number, _rewrite_graph(value, set(names)))
        if number == _MODEL_GRAPH and isinstance(value, memoryview)
        else _field(number, value)
        for number, value in fields
    )


def _rewrite_graph(graph: memoryview, names: set[str]) -> bytes:
    before: list[bytes] = [_constant(_ROW, [-1]), _constant(_COLUMN, [-1, 1])]
    after: list[bytes] = []
    rest: list[bytes] = []
    found = set()
    for number, value in read_fields(graph):
        name = _name(value) if number in (_GRAPH_INPUT, _GRAPH_OUTPUT) else None
        if name not in names or not isinstance(value, memoryview):
            rest.append(_field(number, value))
            continue
        found.add(name)
        rest.append(_field(number, _with_column(value)))
        if number == _GRAPH_INPUT:
            before.append(_reshape(name + COLUMN, name, _ROW))
        else:
            after.append(_reshape(name, name + COLUMN, _COLUMN))
    if missing := sorted(names - found):
        raise ValueError(f"the graph has no inputs or outputs {missing}")
    # Nodes stand in the order in which they run.
    return b"".join([*before, *rest, *after])


_ROW = "nnx_ppo/row_shape"
_COLUMN = "nnx_ppo/column_shape"


def _name(value: int | memoryview) -> str | None:
    if isinstance(value, memoryview):
        for number, text in read_fields(value):
            if number == _VALUE_NAME and isinstance(text, memoryview):
                return bytes(text).decode("utf-8")
    return None


def _with_column(value: memoryview) -> bytes:
    """Returns a value's description with another name and one axis more."""
    element = _element_type(value)
    batch = _message(_SHAPE_DIMENSION, [_field(_DIMENSION_NAME, b"batch")])
    one = _message(_SHAPE_DIMENSION, [_field(_DIMENSION_VALUE, 1)])
    shape = _message(_TENSOR_TYPE_SHAPE, [batch, one])
    tensor = _message(_TYPE_TENSOR, [_field(_TENSOR_TYPE_ELEMENT, element), shape])
    name = f"{_name(value)}{COLUMN}".encode()
    return _field(_VALUE_NAME, name) + _message(_VALUE_TYPE, [tensor])


def _element_type(value: memoryview) -> int:
    for number in (_VALUE_TYPE, _TYPE_TENSOR):
        value = next(
            field
            for key, field in read_fields(value)
            if key == number and not isinstance(field, int)
        )
    return next(
        field
        for key, field in read_fields(value)
        if key == _TENSOR_TYPE_ELEMENT and isinstance(field, int)
    )


def _reshape(source: str, target: str, shape: str) -> bytes:
    return _message(
        _GRAPH_NODE,
        [
            _field(_NODE_INPUT, source.encode()),
            _field(_NODE_INPUT, shape.encode()),
            _field(_NODE_OUTPUT, target.encode()),
            _field(_NODE_NAME, f"nnx_ppo/reshape/{target}".encode()),
            _field(_NODE_OPERATION, b"Reshape"),
        ],
    )


def _constant(name: str, values: list[int]) -> bytes:
    raw = b"".join(value.to_bytes(8, "little", signed=True) for value in values)
    return _message(
        _GRAPH_INITIALIZER,
        [
            _field(_TENSOR_DIMS, len(values)),
            _field(_TENSOR_ELEMENT, _INT64),
            _field(_TENSOR_NAME, name.encode()),
            _field(_TENSOR_RAW, raw),
        ],
    )


def _message(number: int, fields: Iterable[bytes]) -> bytes:
    return _field(number, b"".join(fields))


def _field(number: int, value: int | bytes | memoryview) -> bytes:
    """Writes one field: an integer as such, all else as bytes; ONNX has no others up here."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + bytes(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
