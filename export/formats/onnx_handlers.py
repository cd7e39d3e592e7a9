"""Conversions of single TensorFlow operations that tf2onnx gets wrong or imprecise."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto

from export.formats.onnx_cleanup import bodies_of
from export.formats.onnx_scatter_and_sort import SCATTER_AND_SORT_HANDLERS
from export.lowering.half_precision import TO_BFLOAT16


def _select(graph: Any, node: Any, name: str, arguments: Any) -> Any:
    """Convert a selection as such; tf2onnx multiplies by 0 and 1, which makes NaN of infinities."""
    node.type = "Where"
    return node


def _expm1(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert e^x - 1 without losing everything near zero: tanh(x/2) (e^x + 1)."""
    build = _Builder(graph, node)
    half, one = build.constants(0.5, 1.0)
    tanh = build("Tanh", build("Mul", build.x, half))
    build.replace("Mul", tanh, build("Add", build("Exp", build.x), one))


def _log1p(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert log(1 + x) without losing small x.

    Kahan's correction (HP-15C Advanced Functions Handbook, 1982): the factor x / (u - 1) undoes the
    rounding of u = 1 + x. Where u is 1 the result is x, where it is infinite it is u.
    """
    build = _Builder(graph, node)
    zero, one, infinity = build.constants(0.0, 1.0, np.inf)
    u = build("Add", build.x, one)
    rounded = build("Sub", u, one)
    tiny = build("Equal", rounded, zero)
    factor = build("Div", build.x, build("Where", tiny, one, rounded))
    corrected = build("Mul", build("Log", u), factor)
    large = build("Where", build("Equal", u, infinity), u, corrected)
    build.replace("Where", tiny, build.x, large)


_ROUNDING_CAST = "RoundingCast"


def _cast(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Hide a rounding from tf2onnx's optimizer, which drops a cast to a float before another cast.

    tf2onnx takes bfloat16 for float16; the operation's name tells which was meant.
    """
    source = graph.get_dtype(node.input[0])
    if TO_BFLOAT16 in node.name:
        node.set_attr("to", TensorProto.BFLOAT16)
        graph.set_dtype(node.output[0], TensorProto.BFLOAT16)
    target = node.get_attr_value("to")
    if target in (TensorProto.FLOAT16, TensorProto.BFLOAT16) or source in _ROUNDED.get(target, ()):
        node.type = _ROUNDING_CAST


_ROUNDED: dict[int, tuple[int, ...]] = {
    TensorProto.FLOAT: (
        TensorProto.DOUBLE,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT32,
        TensorProto.UINT64,
    ),
    TensorProto.DOUBLE: (TensorProto.INT64, TensorProto.UINT64),
}
"""Type → those with numbers that it does not hold exactly."""


def restore_rounding(graph: GraphProto) -> None:
    """Turn the hidden casts into casts, within loops too; to be called on what tf2onnx returns."""
    for node in graph.node:
        for body in bodies_of(node):
            restore_rounding(body)
        if node.op_type == _ROUNDING_CAST:
            node.op_type = "Cast"
            # The checker takes no attributes of TensorFlow.
            kept = [attribute for attribute in node.attribute if attribute.name == "to"]
            del node.attribute[:]
            node.attribute.extend(kept)


_COMPARISONS = {
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
}


def _comparison(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Compare integers as they are: tf2onnx casts them to float32, which has 24 bits only."""
    node.type = _COMPARISONS[node.type]


def _log(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Keep the logarithm of float64, which tf2onnx casts to float32, as it is."""


def _float_remainder(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert C's fmod, for which tf2onnx writes an invalid model."""
    node.type = "Mod"
    node.set_attr("fmod", 1)


def _atan2(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert the angle of (x, y) with C's results for zeros of either sign and for infinities.

    The angle in the first quadrant is atan(|y| / |x|), where equal numbers, infinite ones too, have
    the quotient 1, or 0 if they are zero. It is then mirrored; 1/z is negative for -0.
    """
    build = _Builder(graph, node)
    zero, one, minus, pi = build.constants(0.0, 1.0, -1.0, np.pi)
    y, x = node.input
    tall, wide = build("Abs", y), build("Abs", x)
    equal = build("Equal", tall, wide)
    if_equal = build("Where", build("Equal", wide, zero), zero, one)
    angle = build("Atan", build("Where", equal, if_equal, build("Div", tall, wide)))

    def is_negative(value: str) -> str:
        below = build("Less", value, zero)
        return build("Or", below, build("Less", build("Div", one, value), zero))

    half_turn = build("Where", is_negative(x), build("Sub", pi, angle), angle)
    # A factor instead of a selection, since ONNX Runtime's Where forgets the sign of zero.
    build.replace("Mul", half_turn, build("Where", is_negative(y), minus, one))


class _Builder:
    """Puts ONNX nodes where a converted node was."""

    def __init__(self, graph: Any, node: Any):
        self._graph = graph
        self._node = node
        self._dtype = graph.get_dtype(node.input[0])
        self._shape = graph.get_shape(node.output[0])
        self.x = node.input[0]

    def __call__(self, operation: str, *inputs: str) -> str:
        made = self._graph.make_node(operation, list(inputs), op_name_scope=self._node.name)
        return made.output[0]

    def constants(self, *values: float) -> list[str]:
        from tf2onnx import utils

        dtype = utils.map_onnx_to_numpy_type(self._dtype)
        return [
            self._graph.make_const(
                utils.make_name(f"{self._node.name}_constant"), np.asarray(value, dtype)
            ).output[0]
            for value in values
        ]

    def replace(self, operation: str, *inputs: str) -> None:
        """Put the last node, under the converted node's own name and output."""
        node = self._node
        self._graph.remove_node(node.name)
        self._graph.make_node(
            operation,
            list(inputs),
            name=node.name,
            outputs=node.output,
            shapes=[self._shape],
            dtypes=[self._dtype],
        )


HANDLERS: dict[str, tuple[Any, list[Any]]] = {
    "Atan2": (_atan2, []),
    "Cast": (_cast, []),
    **dict.fromkeys(_COMPARISONS, (_comparison, [])),
    "Log": (_log, []),
    "Select": (_select, []),
    "SelectV2": (_select, []),
    "Expm1": (_expm1, []),
    "Log1p": (_log1p, []),
    **SCATTER_AND_SORT_HANDLERS,
    "TruncateMod": (_float_remainder, []),
}
"""TensorFlow operation → handler, as `tf2onnx.convert` takes them."""
