"""Conversions of single TensorFlow operations that tf2onnx gets wrong or imprecise."""

from __future__ import annotations

from typing import Any

import numpy as np

from export.formats.onnx_scatter_and_sort import SCATTER_AND_SORT_HANDLERS


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
    "Select": (_select, []),
    "SelectV2": (_select, []),
    "Expm1": (_expm1, []),
    "Log1p": (_log1p, []),
    **SCATTER_AND_SORT_HANDLERS,
}
"""TensorFlow operation → handler, as `tf2onnx.convert` takes them."""
