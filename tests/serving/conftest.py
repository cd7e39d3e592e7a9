"""A small stateful policy written down three times: in NumPy, as ONNX and for the other runtimes.

Nothing here comes from `export`: the reader must be right about files it did not write itself.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
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

WEIGHTS = np.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.6], [-0.1, 0.2, 0.7]], np.float32)

OBSERVATION_PORTS = [
    Port("obs.arm.contact", ["arm", "contact"], [2], "bool"),
    Port("obs.arm.position", ["arm", "position"], [3], "float32"),
    Port("obs.goal", ["goal"], [], "float32"),
]
CARRY_PORTS = [
    CarryPort("carry.count", ["count"], [], "int32", "next_carry.count", "initial", "state"),
    CarryPort("carry.hidden", ["hidden"], [3], "float32", "next_carry.hidden", "initial", "state"),
    CarryPort("carry.total", ["total"], [1], "float32", "next_carry.total", "keep", "state"),
]
ACTION_PORTS = [
    Port("action.gripper", ["gripper"], [], "float32"),
    Port("action.joints", ["joints"], [3], "float32"),
]
EXTRA_PORTS = [Port("value", [], [1], "float32")]
INITIAL_CARRY = {
    "carry.count": np.array(5, np.int32),
    "carry.hidden": np.array([0.1, -0.2, 0.3], np.float32),
    "carry.total": np.array([1.5], np.float32),
}


def leaf(port: Port) -> tree.Leaf:
    return tree.Leaf(port.name, port.shape, port.dtype)


OBSERVATION = tree.Dict(
    ["arm", "goal", "privileged"],
    [
        tree.Dict(["contact", "position"], [leaf(p) for p in OBSERVATION_PORTS[:2]]),
        leaf(OBSERVATION_PORTS[2]),
        tree.Leaf(None, [7], "float32"),
    ],
)
ACTION = tree.Dict(["gripper", "joints"], [leaf(p) for p in ACTION_PORTS])


class LeakyPolicy:
    """A leaky integrator with a step counter and a sum that survives resets."""

    def manifest(self, batch_size: int | None = None) -> Manifest:
        return Manifest(
            name="leaky",
            batch_size=batch_size,
            control_rate_hz=50.0,
            observation=OBSERVATION,
            action=ACTION,
            observation_ports=OBSERVATION_PORTS,
            carry_ports=CARRY_PORTS,
            action_ports=ACTION_PORTS,
            extra_output_ports=EXTRA_PORTS,
            network_carry=NetworkCarry(
                tree.Dict(
                    ["count", "hidden", "key", "total"],
                    [
                        leaf(CARRY_PORTS[0]),
                        leaf(CARRY_PORTS[1]),
                        tree.Leaf(None, [2], "uint32"),
                        leaf(CARRY_PORTS[2]),
                    ],
                ),
                [
                    self.carry_leaf(CARRY_PORTS[0]),
                    self.carry_leaf(CARRY_PORTS[1]),
                    CarryLeaf(source="dropped", port=None, fill=None, shape=[2], dtype="uint32"),
                    self.carry_leaf(CARRY_PORTS[2]),
                ],
            ),
            metadata=metadata_from({"joint_names": ["a", "b", "c"], "robot": "arm 7"}),
            versions={"jax": "0.10.2"},
            git_commit=None,
            artefacts={"onnx": Artefact(format="onnx", entry="onnx/policy.onnx", opset=18)},
        )

    def carry_leaf(self, port: CarryPort) -> CarryLeaf:
        return CarryLeaf(
            source="exported", port=port.name, fill=None, shape=port.shape, dtype=port.dtype
        )

    def initial_carry(self, batch_size: int) -> dict[str, np.ndarray]:
        return {k: np.repeat(v[None], batch_size, 0) for k, v in INITIAL_CARRY.items()}

    def step(
        self, carry: dict[str, np.ndarray], observation: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """All outputs by name, for inputs by name."""
        touch = observation["obs.arm.contact"].astype(np.float32).sum(1, keepdims=True)
        driven = observation["obs.arm.position"] @ WEIGHTS + touch
        hidden = (np.float32(0.9) * carry["carry.hidden"] + driven).astype(np.float32)
        total = carry["carry.total"] + observation["obs.goal"][:, None]
        count = carry["carry.count"] + np.int32(1)
        return {
            "action.gripper": (total[:, 0] + count.astype(np.float32)).astype(np.float32),
            "action.joints": np.tanh(hidden),
            "next_carry.count": count,
            "next_carry.hidden": hidden,
            "next_carry.total": total,
            "value": hidden.sum(1, keepdims=True),
        }

    def observe(self, rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        """A random observation by port name."""
        return {
            "obs.arm.contact": rng.random((rows, 2)) < 0.5,
            "obs.arm.position": rng.normal(size=(rows, 3)).astype(np.float32),
            "obs.goal": rng.normal(size=rows).astype(np.float32),
        }

    def tree(self, observation: dict[str, np.ndarray], row: int | None = None) -> dict[str, Any]:
        """The observation as the user's nested dict, of all rows or of one."""
        take = (lambda x: x) if row is None else (lambda x: x[row])
        return {
            "arm": {
                "contact": take(observation["obs.arm.contact"]),
                "position": take(observation["obs.arm.position"]),
            },
            "goal": take(observation["obs.goal"]),
        }

    def golden(self, steps: int = 40, rows: int = 3) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(7)
        reset = rng.random((steps, rows)) < 0.1
        carry = self.initial_carry(rows)
        record: dict[str, list[np.ndarray]] = {}
        for t in range(steps):
            for name in ("carry.count", "carry.hidden"):
                carry[name][reset[t]] = INITIAL_CARRY[name]
            observation = self.observe(rng, rows)
            outputs = self.step(carry, observation)
            carry = {p.name: outputs[p.next_name].copy() for p in CARRY_PORTS}
            for name, value in {**observation, **outputs}.items():
                record.setdefault(name, []).append(value)
        return {"reset": reset, **{name: np.stack(values) for name, values in record.items()}}

    def onnx_model(self, batch_size: int | None = None) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Cast", ["obs.arm.contact"], ["contact"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["contact", "axis1"], ["touch"], keepdims=1),
            helper.make_node("MatMul", ["obs.arm.position", "weights"], ["projected"]),
            helper.make_node("Add", ["projected", "touch"], ["driven"]),
            helper.make_node("Mul", ["carry.hidden", "leak"], ["leaked"]),
            helper.make_node("Add", ["leaked", "driven"], ["next_carry.hidden"]),
            helper.make_node("Tanh", ["next_carry.hidden"], ["action.joints"]),
            helper.make_node("ReduceSum", ["next_carry.hidden", "axis1"], ["value"], keepdims=1),
            helper.make_node("Add", ["carry.count", "one"], ["next_carry.count"]),
            helper.make_node("Unsqueeze", ["obs.goal", "axis1"], ["goal"]),
            helper.make_node("Add", ["carry.total", "goal"], ["next_carry.total"]),
            helper.make_node("Squeeze", ["next_carry.total", "axis1"], ["flat"]),
            helper.make_node("Cast", ["next_carry.count"], ["steps"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["flat", "steps"], ["action.gripper"]),
        ]
        constants = {
            "weights": WEIGHTS,
            "leak": np.float32(0.9),
            "one": np.int32(1),
            "axis1": np.array([1], np.int64),
        }
        manifest = self.manifest()
        return make_model(
            nodes,
            constants,
            [(p.name, p) for p in [*manifest.carry_ports, *manifest.observation_ports]],
            [
                *((p.name, p) for p in manifest.action_ports),
                *((p.next_name, p) for p in manifest.carry_ports),
                *((p.name, p) for p in manifest.extra_output_ports),
            ],
            batch_size,
        )

    def write(
        self,
        target: Path,
        *,
        batch_size: int | None = None,
        manifest: Manifest | None = None,
        model: bytes | None = None,
        golden: dict[str, np.ndarray] | None = None,
    ) -> Path:
        """Writes a bundle with an ONNX artefact."""
        data = self.onnx_model(batch_size).SerializeToString() if model is None else model
        with BundleWriter(target) as writer:
            (writer.path / "onnx").mkdir()
            (writer.path / "onnx" / "policy.onnx").write_bytes(data)
            writer.commit(
                manifest or self.manifest(batch_size),
                INITIAL_CARRY,
                golden or self.golden(rows=batch_size or 3),
            )
        return target


def make_model(
    nodes: list[onnx.NodeProto],
    constants: dict[str, Any],
    inputs: list[tuple[str, Port]],
    outputs: list[tuple[str, Port]],
    batch_size: int | None,
) -> onnx.ModelProto:
    """An ONNX model whose tensors are named and shaped as ports are."""

    def describe(name: str, port: Port) -> onnx.ValueInfoProto:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype))
        return helper.make_tensor_value_info(name, element, [batch_size or "batch", *port.shape])

    graph = helper.make_graph(
        nodes,
        "policy",
        [describe(*item) for item in inputs],
        [describe(*item) for item in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.fixture(scope="session")
def leaky() -> LeakyPolicy:
    return LeakyPolicy()


@pytest.fixture(scope="session")
def bundle_path(leaky: LeakyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that no test may change."""
    return leaky.write(tmp_path_factory.mktemp("bundles") / "leaky")


@pytest.fixture
def own_bundle(bundle_path: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may damage."""
    return Path(shutil.copytree(bundle_path, tmp_path / "own"))


@pytest.fixture(scope="session")
def build_model() -> Callable[..., onnx.ModelProto]:
    return make_model
