"""Layers become one node; what is no layer stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.formats.onnx_cleanup import fuse_layers

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
