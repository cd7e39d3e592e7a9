"""Bundles of small recurrent policies for any observation and action, written without `export`.

hidden' = 0.8 hidden + W [leaves of the observation], action = V hidden'. What a step gives depends
on the steps before it, so a carry that was not reset, or was reset too often, shows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from serving import BundleWriter, tree
from serving.manifest import (
    Artefact,
    CarryLeaf,
    CarryPort,
    Manifest,
    NetworkCarry,
    Port,
    metadata_from,
)

HIDDEN = CarryPort("carry.h", ["h"], [4], "float32", "next_carry.h", "initial", "state")
Shapes = dict[str, tuple[tuple[int, ...], str]]


def write_rnn(
    target: Path,
    observation: tuple[int, ...] | Shapes,
    action: tuple[int, ...] | dict[str, tuple[int, ...]],
    *,
    batch_size: int | None = None,
    metadata: dict[str, Any] | None = None,
    gain: float = 1.0,
) -> Path:
    """Writes a bundle with an ONNX artefact.

    Args:
        target: directory to write.
        observation: the shape of one float32 array, or shape and dtype by key.
        action: the shape of one float32 array, or shapes by key.
        batch_size: the only one that the artefact takes, or None for any.
        metadata: of the bundle.
        gain: factor of all actions.
    """
    shapes: Shapes = (
        observation if isinstance(observation, dict) else {"": (observation, "float32")}
    )
    observation_ports = [
        Port(_joined("obs", key), [key] if key else [], list(shape), dtype)
        for key, (shape, dtype) in sorted(shapes.items())
    ]
    actions = action if isinstance(action, dict) else {"": action}
    action_ports = [
        Port(_joined("action", key), [key] if key else [], list(shape), "float32")
        for key, shape in sorted(actions.items())
    ]
    manifest = Manifest(
        name="rnn",
        batch_size=batch_size,
        control_rate_hz=20.0,
        observation=_node(observation_ports),
        action=_node(action_ports),
        observation_ports=observation_ports,
        carry_ports=[HIDDEN],
        action_ports=action_ports,
        extra_output_ports=[],
        network_carry=NetworkCarry(
            tree.Dict(["h"], [_leaf(HIDDEN)]),
            [CarryLeaf(source="exported", port="carry.h", fill=None, shape=[4], dtype="float32")],
        ),
        metadata=metadata_from(metadata),
        versions={},
        git_commit=None,
        artefacts={"onnx": Artefact(format="onnx", entry="onnx/policy.onnx", opset=18)},
    )
    with BundleWriter(target) as writer:
        (writer.path / "onnx").mkdir()
        model = _model(observation_ports, action_ports, batch_size, gain)
        (writer.path / "onnx" / "policy.onnx").write_bytes(model)
        rows = batch_size or 1
        ports = [*observation_ports, *action_ports]
        golden: dict[str, np.ndarray] = {
            port.name: np.zeros((1, rows, *port.shape), port.dtype) for port in ports
        }
        golden["next_carry.h"] = np.zeros((1, rows, 4), np.float32)
        golden["reset"] = np.zeros((1, rows), np.bool_)
        writer.commit(manifest, {"carry.h": np.full(4, 0.1, np.float32)}, golden)
    return target


def _joined(role: str, key: str) -> str:
    return f"{role}.{key}" if key else role


def _leaf(port: Port) -> tree.Leaf:
    return tree.Leaf(port.name, port.shape, port.dtype)


def _node(ports: list[Port]) -> tree.Node:
    if not ports[0].path:
        return _leaf(ports[0])
    return tree.Dict([port.path[0] for port in ports], [_leaf(port) for port in ports])


def _model(
    observation_ports: list[Port], action_ports: list[Port], batch_size: int | None, gain: float
) -> bytes:
    rng = np.random.default_rng(3)
    width = sum(math.prod(port.shape) for port in observation_ports)
    constants: dict[str, np.ndarray] = {
        "w": rng.normal(size=(width, 4)).astype(np.float32) / np.float32(width),
        "leak": np.array(0.8, np.float32),
    }
    nodes = []
    for index, port in enumerate(observation_ports):
        nodes.append(helper.make_node("Cast", [port.name], [f"f{index}"], to=TensorProto.FLOAT))
        size = np.array([-1, math.prod(port.shape)], np.int64)
        constants[f"size{index}"] = size
        nodes.append(helper.make_node("Reshape", [f"f{index}", f"size{index}"], [f"x{index}"]))
    inputs = [f"x{index}" for index in range(len(observation_ports))]
    nodes += [
        helper.make_node("Concat", inputs, ["x"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["driven"]),
        helper.make_node("Mul", ["carry.h", "leak"], ["kept"]),
        helper.make_node("Add", ["driven", "kept"], ["next_carry.h"]),
    ]
    for index, port in enumerate(action_ports):
        size = math.prod(port.shape)
        constants[f"v{index}"] = (gain * rng.normal(size=(4, size))).astype(np.float32)
        constants[f"shape{index}"] = np.array([-1, *port.shape], np.int64)
        nodes.append(helper.make_node("MatMul", ["next_carry.h", f"v{index}"], [f"y{index}"]))
        nodes.append(helper.make_node("Reshape", [f"y{index}", f"shape{index}"], [port.name]))

    def describe(name: str, port: Port) -> Any:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype))
        return helper.make_tensor_value_info(name, element, [batch_size or "batch", *port.shape])

    graph = helper.make_graph(
        nodes,
        "rnn",
        [describe(port.name, port) for port in [HIDDEN, *observation_ports]],
        [
            *(describe(port.name, port) for port in action_ports),
            describe(HIDDEN.next_name, HIDDEN),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
