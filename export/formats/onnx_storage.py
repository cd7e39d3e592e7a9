"""Smaller weights in an ONNX model: float16 storage, and int8 layers with dynamic quantization.

Both change the graph in place and say which parity bound goes with what they did. Only weights of
layers are touched, constant matrices of products and kernels of convolutions: a normalizer's mean
or a bias needs all its digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.formats.onnx_cleanup import drop_unused_constants

FLOAT16_BOUND = 1e-2
"""Parity bound, absolute and relative, of a model with float16 weights (11 bits each)."""
INT8_BOUND = 1e-1
"""The same of a model with int8 layers (8 bits for weights and inputs)."""

_LAYERS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
_LEAST_FLOAT16 = 64
_ZERO = 128


def store_as_float16(model: onnx.ModelProto) -> int:
    """Store weights of layers as float16 and convert them back where the model is loaded.

    A weight matrix stays as it is if float16 cannot hold it to about 11 bits: numbers above 65504,
    or all so small that float16 has no digits left.

    Returns:
        How many tensors were stored so.
    """
    graph = model.graph
    weights = _weights(graph)
    casts = []
    for tensor in graph.initializer:
        if tensor.name not in weights or tensor.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < _LEAST_FLOAT16 or not _fits_float16(values):
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_float16"))
        casts.append(helper.make_node("Cast", [tensor.name], [name], name, to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return len(casts)


def quantize_layers(model: onnx.ModelProto, min_weights: int) -> int:
    """Compute large layers in int8.

    Weights are quantized column by column when the model is made, inputs row by row when it runs,
    both symmetrically: what one robot observes never changes another's action. Both are unsigned
    with the zero at 128, since some processors saturate when they add up products of an unsigned
    and a signed byte. A row with a NaN or an infinity gives NaN, as it does in float32.

    Args:
        model: Changed in place; its opset must have `Round`.
        min_weights: Size of the smallest matrix to quantize.

    Returns:
        How many layers were quantized.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    made = _Quantizer(graph, opset)
    nodes: list[Any] = []
    count = 0
    for node in graph.node:
        weights = _matrix(node, constants)
        if weights is None or weights.size < min_weights:
            nodes.append(node)
        else:
            nodes += made.layer(node, weights)
            count += 1
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unused_constants(graph)
    return count


class _Quantizer:
    """Makes the nodes of quantized layers; shared constants are made once."""

    def __init__(self, graph: Any, opset: int) -> None:
        self._graph = graph
        self._opset = opset
        self._known: set[str] = set()
        self._inputs: dict[str, tuple[list[Any], str, str]] = {}

    def layer(self, node: Any, weights: np.ndarray) -> list[Any]:
        """Return what takes the place of a product with a constant `(inputs, outputs)` matrix."""
        stem = f"{node.output[0]}_int8"
        scale = np.abs(weights).max(axis=0, keepdims=True).astype(np.float64) / 127.0
        scale = np.where(scale > 0, scale, 1.0)
        quantized = (np.round(weights / scale) + _ZERO).astype(np.uint8)
        matrix = self._constant(f"{stem}_weights", quantized)
        columns = self._constant(f"{stem}_scale", scale[0].astype(np.float32))
        zero = self._constant("int8_zero", np.asarray(_ZERO, np.uint8))
        nodes, rows, row_scale = self._quantized(node.input[0])
        has_bias = node.op_type == "Gemm" and len(node.input) > 2 and node.input[2]
        product = f"{stem}_scaled" if has_bias else node.output[0]
        nodes += [
            helper.make_node("MatMulInteger", [rows, matrix, zero, zero], [f"{stem}_sum"]),
            helper.make_node("Cast", [f"{stem}_sum"], [f"{stem}_float"], to=TensorProto.FLOAT),
            # One factor after the other: ONNX Runtime fuses a product with the two factors
            # multiplied first into a kernel that takes one scale for all rows.
            helper.make_node("Mul", [f"{stem}_float", columns], [f"{stem}_columns"]),
            helper.make_node("Mul", [f"{stem}_columns", row_scale], [product]),
        ]
        if has_bias:
            nodes.append(helper.make_node("Add", [product, node.input[2]], [node.output[0]]))
        for made in nodes:
            made.name = made.name or made.output[0]
        return nodes

    def _quantized(self, name: str) -> tuple[list[Any], str, str]:
        """Return nodes that quantize a tensor row by row, the bytes' name and the scales' name.

        Two layers with one input share them, so the nodes come the first time only.
        """
        if name in self._inputs:
            return [], *self._inputs[name][1:]
        stem = f"{name}_int8"
        unit = self._constant("int8_unit", np.asarray(1.0 / 127.0, np.float32))
        least = self._constant("int8_least", np.asarray(1e-30, np.float32))
        shift = self._constant("int8_shift", np.asarray(_ZERO, np.float32))
        nodes = [
            helper.make_node("Abs", [name], [f"{stem}_abs"]),
            self._largest(f"{stem}_abs", f"{stem}_largest"),
            helper.make_node("Mul", [f"{stem}_largest", unit], [f"{stem}_raw"]),
            helper.make_node("Max", [f"{stem}_raw", least], [f"{stem}_unit"]),
            helper.make_node("Div", [name, f"{stem}_unit"], [f"{stem}_div"]),
            helper.make_node("Round", [f"{stem}_div"], [f"{stem}_round"]),
            helper.make_node("Add", [f"{stem}_round", shift], [f"{stem}_shifted"]),
            helper.make_node("Cast", [f"{stem}_shifted"], [f"{stem}_rows"], to=TensorProto.UINT8),
        ]
        self._inputs[name] = (nodes, f"{stem}_rows", f"{stem}_unit")
        return self._inputs[name]

    def _largest(self, source: str, target: str) -> Any:
        if self._opset < 18:
            return helper.make_node("ReduceMax", [source], [target], axes=[-1], keepdims=1)
        axes = self._constant("int8_axis", np.asarray([-1], np.int64))
        return helper.make_node("ReduceMax", [source, axes], [target], keepdims=1)

    def _constant(self, name: str, values: np.ndarray) -> str:
        if name not in self._known:
            self._known.add(name)
            self._graph.initializer.append(numpy_helper.from_array(values, name))
        return name


def _weights(graph: Any) -> set[str]:
    """Return the names of constants that only layers read, as their weights."""
    constants = {tensor.name for tensor in graph.initializer if len(tensor.dims) >= 2}
    read_as_weight, read_otherwise = set(), {value.name for value in graph.output}
    for node in graph.node:
        for index, name in enumerate(node.input):
            is_weight = node.op_type in _LAYERS and index < 2
            (read_as_weight if is_weight else read_otherwise).add(name)
    return (constants & read_as_weight) - read_otherwise


def _fits_float16(values: np.ndarray) -> bool:
    largest = np.abs(values).max(initial=0.0)
    if not largest <= np.finfo(np.float16).max:  # also false for NaN
        return False
    error = np.abs(values.astype(np.float16).astype(np.float32) - values).max(initial=0.0)
    return bool(error <= largest * 2.0**-11)


def _matrix(node: Any, constants: dict[str, Any]) -> np.ndarray | None:
    """Return the constant matrix that a node multiplies by from the right, else None."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in constants:
        return None
    tensor = constants[node.input[1]]
    if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != 2:
        return None
    settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    plain = (settings.get("alpha", 1.0), settings.get("beta", 1.0), settings.get("transA", 0))
    if plain != (1.0, 1.0, 0):
        return None
    values = numpy_helper.to_array(tensor)
    if not np.isfinite(values).all():
        return None
    return values.T if settings.get("transB", 0) else values
