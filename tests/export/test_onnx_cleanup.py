"""Layers become one node; what is no layer stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.formats.onnx_cleanup import fuse_layers, use_relu

GENERATOR = np.random.default_rng(0)
WEIGHTS = GENERATOR.normal(size=(4, 3)).astype(np.float32)


def model_with(bias, *, rank=2, product_is_output=False):
    """Return `y = x @ W + bias` as MatMul and Add."""
    constants = [numpy_helper.from_array(WEIGHTS, "W"), numpy_helper.from_array(bias, "bias")]
    shape = ["batch", 4] if rank == 2 else ["batch", 2, 4]
    outputs = ["y", "p"] if product_is_output else ["y"]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["p"]),
            helper.make_node("Add", ["p", "bias"], ["y"]),
        ],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [*shape[:-1], 3])
            for name in outputs
        ],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model


def run(model, x):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_product_and_bias_become_one_node(shape):
    model = model_with(GENERATOR.normal(size=shape).astype(np.float32))
    x = GENERATOR.normal(size=(5, 4)).astype(np.float32)
    before = run(model, x)
    fuse_layers(model)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Gemm"]
    assert len(model.graph.initializer) == 2
    np.testing.assert_allclose(run(model, x), before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": np.ones((1,), np.float32)},
        {"bias": np.ones((5, 3), np.float32)},
        {"bias": np.ones((3,), np.float32), "rank": 3},
        {"bias": np.ones((3,), np.float32), "product_is_output": True},
    ],
)
def test_other_sums_stay(options):
    model = model_with(**options)
    fuse_layers(model)
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Add"]


ACTIVATIONS = {
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def activated(operation, *, rank=2):
    """Return `y = operation(x @ W)`; `Max` has a constant zero beside it."""
    model = model_with(np.zeros(3, np.float32), rank=rank)
    product, rest = model.graph.node
    rest.op_type = operation
    rest.input[:] = ["p", "zero"] if operation == "Max" else ["p"]
    del model.graph.initializer[1]
    if operation == "Max":
        model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
    return model


@pytest.mark.parametrize("operation", list(ACTIVATIONS))
def test_a_product_before_an_activation_becomes_a_layer_that_runtimes_fuse(operation, tmp_path):
    model = activated(operation)
    fuse_layers(model)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Gemm", operation]
    x = GENERATOR.normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(
        run(model, x), ACTIVATIONS[operation](x @ WEIGHTS), rtol=1e-5, atol=1e-6
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    optimized = onnx.load(options.optimized_model_filepath)
    assert [node.op_type for node in optimized.graph.node] == ["FusedGemm"]


def test_a_product_of_more_axes_stays():
    model = activated("Tanh", rank=3)
    fuse_layers(model)
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Tanh"]


@pytest.mark.parametrize("fused", [False, True])
def test_a_maximum_with_zero_becomes_relu_and_keeps_nan(fused):
    model = activated("Max")
    use_relu(model)
    if fused:
        fuse_layers(model)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Gemm" if fused else "MatMul", "Relu"]
    assert [tensor.name for tensor in model.graph.initializer] == ["W"]
    x = GENERATOR.normal(size=(40, 4)).astype(np.float32)
    x[::3, 1] = np.nan
    np.testing.assert_array_equal(np.isnan(run(model, x)), np.isnan(x @ WEIGHTS))
    np.testing.assert_allclose(run(model, x), np.maximum(x @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "other", [np.float32(1), np.zeros(3, np.float32), np.zeros((1, 1, 1), np.float32)]
)
def test_other_maxima_stay(other):
    model = activated("Max")
    del model.graph.initializer[1]
    model.graph.initializer.append(numpy_helper.from_array(other, "zero"))
    use_relu(model)
    assert model.graph.node[1].op_type == "Max"


def test_a_layer_of_integers_stays_a_product():
    """ONNX Runtime multiplies matrices of integers, but has no Gemm for them."""
    model = model_with(np.ones(3, np.float32))
    weights = numpy_helper.from_array(np.arange(12, dtype=np.int32).reshape(4, 3), "W")
    bias = numpy_helper.from_array(np.ones(3, np.int32), "bias")
    model.graph.initializer[0].CopyFrom(weights)
    model.graph.initializer[1].CopyFrom(bias)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT32
    fuse_layers(model)
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Add"]
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    np.testing.assert_array_equal(run(model, x), x @ np.arange(12).reshape(4, 3) + 1)
