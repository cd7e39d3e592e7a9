"""Conversions of TensorFlow's scatter and top-k, which tf2onnx gets wrong or leaves to chance.

ONNX Runtime runs `ScatterND` on several threads, so which of two updates of one element comes last
is chance there; `ScatterElements` goes through them in order. tf2onnx sends integers through
float32 to `TopK`, which loses those above 2^24.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _scatter(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert a scatter into a vector."""
    from tf2onnx import utils

    data, indices, updates = node.input
    utils.make_sure(
        graph.get_rank(data) in (1, None),
        "scatter into an array of rank %s",
        graph.get_rank(data),
    )
    positions = _reshaped(graph, name, _as_int64(graph, indices), [-1])
    (reduction,) = arguments
    _replace(graph, node, "ScatterElements", [data, positions, updates], _scatter_attr(reduction))


def _scatter_attr(reduction: str) -> dict[str, Any]:
    return {"axis": 0} if reduction == "none" else {"axis": 0, "reduction": reduction}


def _segment_product(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert the product of each segment: multiply every element into ones."""
    from tf2onnx import utils

    data, segments, count = node.input
    dtype = utils.map_onnx_to_numpy_type(graph.get_dtype(data))
    one = graph.make_const(utils.make_name(f"{name}_one"), np.ones([1], dtype)).output[0]
    length = _reshaped(graph, name, _as_int64(graph, count), [1])
    ones = graph.make_node("Expand", [one, length], op_name_scope=name).output[0]
    inputs = [ones, _as_int64(graph, segments), data]
    _replace(graph, node, "ScatterElements", inputs, _scatter_attr("mul"))


def _top_k(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert top-k in the type that it has."""
    from onnx import TensorProto

    values, indices = node.output
    shapes, dtypes = node.output_shapes, node.output_dtypes
    count = _reshaped(graph, name, _as_int64(graph, node.input[1]), [1])
    data = node.input[0]
    graph.remove_node(node.name)
    made = graph.make_node(
        "TopK",
        [data, count],
        attr={"axis": -1, "largest": 1, "sorted": 1},
        outputs=[values, f"{name}_places"],
        name=name,
        shapes=shapes,
        dtypes=[dtypes[0], TensorProto.INT64],
    )
    graph.make_node(
        "Cast",
        [made.output[1]],
        attr={"to": dtypes[1]},
        outputs=[indices],
        shapes=[shapes[1]],
        dtypes=[dtypes[1]],
        op_name_scope=name,
    )


def _sign_bits(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert a bitcast, of which our rules read the sign only: to -1 where it is set, else 0.

    ONNX before opset 26 has no such operation. The quotient 1/x tells the sign of a zero. That of a
    NaN cannot be told; it is taken for positive, and for negative behind a negation.
    """
    from tf2onnx import utils

    (source,) = node.input
    negations = 0
    while graph.get_node_by_output(source) is not None:
        producer = graph.get_node_by_output(source)
        if producer.type not in _MOVES and producer.type != "Neg":
            break
        negations += producer.type == "Neg"
        source = producer.input[0]
    floats = utils.map_onnx_to_numpy_type(graph.get_dtype(node.input[0]))
    integers = utils.map_onnx_to_numpy_type(node.output_dtypes[0])

    def constant(value: int, dtype: Any) -> str:
        return graph.make_const(utils.make_name(f"{name}_c"), np.asarray(value, dtype)).output[0]

    def build(operation: str, *inputs: str) -> str:
        return graph.make_node(operation, list(inputs), op_name_scope=name).output[0]

    x, zero, one = node.input[0], constant(0, floats), constant(1, floats)
    negative = build("Or", build("Less", x, zero), build("Less", build("Div", one, x), zero))
    if negations % 2:
        negative = build("Or", negative, build("IsNaN", x))
    chosen = [negative, constant(-1, integers), constant(0, integers)]
    _replace(graph, node, "Where", chosen, {})


_MOVES = ("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operations that leave the sign of every element as it is."""


def _as_int64(graph: Any, name: str) -> str:
    from onnx import TensorProto

    if graph.get_dtype(name) == TensorProto.INT64:
        return name
    return graph.make_node("Cast", [name], attr={"to": TensorProto.INT64}).output[0]


def _reshaped(graph: Any, scope: str, name: str, shape: list[int]) -> str:
    from tf2onnx import utils

    target = graph.make_const(utils.make_name(f"{scope}_shape"), np.asarray(shape, np.int64))
    return graph.make_node("Reshape", [name, target.output[0]], op_name_scope=scope).output[0]


def _replace(
    graph: Any, node: Any, operation: str, inputs: list[str], attributes: dict[str, Any]
) -> None:
    shapes, dtypes, outputs = node.output_shapes, node.output_dtypes, list(node.output)
    graph.remove_node(node.name)
    graph.make_node(
        operation,
        inputs,
        attr=attributes,
        name=node.name,
        outputs=outputs,
        shapes=shapes,
        dtypes=dtypes,
    )


SCATTER_AND_SORT_HANDLERS: dict[str, tuple[Any, list[Any]]] = {
    "TensorScatterUpdate": (_scatter, ["ScatterElements", "none"]),
    "TensorScatterAdd": (_scatter, ["ScatterElements", "add"]),
    "TensorScatterMin": (_scatter, ["ScatterElements", "min"]),
    "TensorScatterMax": (_scatter, ["ScatterElements", "max"]),
    "UnsortedSegmentProd": (_segment_product, []),
    "TopKV2": (_top_k, []),
    "Bitcast": (_sign_bits, []),
}
"""TensorFlow operation → handler, then the ONNX operation and the handler's arguments."""
