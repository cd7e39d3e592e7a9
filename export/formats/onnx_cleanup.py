"""Simplifications of the ONNX graph that only ONNX has operations for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_FUSED_WITH_GEMM = ("LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""Activations that ONNX Runtime computes within the Gemm before them, but not within a MatMul."""

_GEMM_WITHOUT_BIAS = 11
"""First opset whose Gemm needs no bias."""


def use_relu(model: onnx.ModelProto) -> None:
    """Replace the maximum of a value and zero by `Relu`, in place; runtimes fuse that with layers.

    Both keep NaN; float types only, others have no kernel.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Max" or len(node.input) != 2:
            continue
        for value, other in (node.input, reversed(node.input)):
            if other in constants and value not in constants and _is_scalar_zero(constants[other]):
                node.op_type = "Relu"
                node.input[:] = [value]
                break
    drop_unused_constants(graph)


def _is_scalar_zero(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        return False
    # More axes would make the result's rank another than that of the value.
    return not tensor.dims and not numpy_helper.to_array(tensor)


def fuse_layers(model: onnx.ModelProto) -> None:
    """Replace `MatMul` by `Gemm`, in place, with the constant bias that is added or an activation.

    Gemm takes matrices only, so the product must be one; its bias must lie along the columns.
    """
    _absorb_biases(model)
    if model.opset_import[0].version >= _GEMM_WITHOUT_BIAS:
        _prepare_for_activations(model)


def _prepare_for_activations(model: onnx.ModelProto) -> None:
    graph = model.graph
    shapes = _shapes(model)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    activated = {node.input[0] for node in graph.node if node.op_type in _FUSED_WITH_GEMM}
    for node in graph.node:
        is_product = node.op_type == "MatMul" and node.output[0] in activated
        if is_product and _columns(node, constants, shapes) is not None:
            node.op_type = "Gemm"


def _absorb_biases(model: onnx.ModelProto) -> None:
    graph = model.graph
    shapes = _shapes(model)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    counts: dict[str, int] = {}
    for name in _used_names(graph):
        counts[name] = counts.get(name, 0) + 1
    outputs = {value.name for value in graph.output}
    products = {node.output[0]: node for node in graph.node if node.op_type == "MatMul"}
    for node in list(graph.node):
        if node.op_type != "Add":
            continue
        found = _product_and_bias(node, products, constants)
        if found is None:
            continue
        product, bias = found
        columns = _columns(product, constants, shapes)
        if columns is None or counts[product.output[0]] != 1 or product.output[0] in outputs:
            continue
        values = numpy_helper.to_array(constants[bias])
        if values.size != columns or values.shape[-1:] != (columns,):
            continue
        flat = _flattened(graph, constants, bias, values)
        fused = helper.make_node(
            "Gemm", [*product.input, flat], list(node.output), name=product.name
        )
        position = list(graph.node).index(node)
        graph.node.remove(node)
        graph.node.insert(position, fused)
        graph.node.remove(product)
    drop_unused_constants(graph)


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies of a loop or branch."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g


def _used_names(graph: Any) -> Iterator[str]:
    """Yield each name that a node reads, once per use; bodies see the names outside them."""
    for node in graph.node:
        yield from node.input
        for body in bodies_of(node):
            yield from _used_names(body)
            yield from (value.name for value in body.output)


def _product_and_bias(node: Any, products: dict[str, Any], constants: Any) -> Any:
    for first, second in (node.input, reversed(node.input)):
        if first in products and second in constants:
            return products[first], second
    return None


def _columns(product: Any, constants: Any, shapes: dict[str, int]) -> int | None:
    """Return the width of a product of a matrix with a constant one, else None."""
    left, right = product.input
    if shapes.get(left) != 2 or right not in constants or len(constants[right].dims) != 2:
        return None
    if constants[right].data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        # ONNX Runtime multiplies matrices of integers, but has no Gemm for them.
        return None
    return int(constants[right].dims[1])


def _shapes(model: onnx.ModelProto) -> dict[str, int]:
    """Return the rank of every tensor for which it is known."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in [*inferred.input, *inferred.value_info, *inferred.output]
        if value.type.tensor_type.HasField("shape")
    }


def _flattened(graph: Any, constants: Any, name: str, values: np.ndarray) -> str:
    """Return the name of the bias as a vector; Gemm broadcasts that in every runtime."""
    if values.ndim == 1:
        return name
    flat = f"{name}_vector"
    if flat not in constants:
        constants[flat] = numpy_helper.from_array(values.reshape(-1), flat)
        graph.initializer.append(constants[flat])
    return flat


def drop_unused_constants(graph: Any) -> None:
    """Remove constants that nothing reads."""
    used = {*_used_names(graph), *(value.name for value in graph.output)}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
