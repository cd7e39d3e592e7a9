"""Each artefact is usable alone, by the plain library of its format."""

from __future__ import annotations

import os

import jax
import numpy as np
import onnxruntime
import pytest
from export_networks import make
from flax import nnx

from export import export_policy
from export.formats.onnx import convert
from export.formats.stablehlo import STABLEHLO_VERSION
from export.step import build_step
from nnx_ppo.environments.policies import make_delayed_graph_policy
from serving import load_policy

NAMES = ["lstm", "population_graph", "two_arm"]


def reference(case, batch_size):
    """Return inputs by port name and outputs by name of two steps, from the network itself."""
    copy = nnx.clone(case.network)
    copy.eval()
    generator = np.random.default_rng(3)
    observation = jax.tree.map(
        lambda leaf: generator.normal(size=(batch_size, *leaf.shape)).astype(leaf.dtype),
        case.observation,
    )
    output = copy(copy.initialize_state(batch_size), observation)
    return observation, output.output.actions


def port_values(case, observation, batch_size):
    manifest = case.bundle.manifest
    values = {
        port.name: np.repeat(case.bundle.initial_carry[port.name][None], batch_size, 0)
        for port in manifest.carry_ports
    }
    for port in manifest.observation_ports:
        leaf = observation
        for key in port.path:
            leaf = leaf[key]
        values[port.name] = leaf
    return values


def check_actions(case, by_name, expected):
    for port, leaf in zip(
        case.bundle.manifest.action_ports, jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(by_name[port.name], leaf, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_plain_onnxruntime_runs_the_file(exported, name, batch_size):
    case = exported(name)
    observation, expected = reference(case, batch_size)
    session = onnxruntime.InferenceSession(
        case.bundle.artefact_path("onnx"), providers=["CPUExecutionProvider"]
    )
    outputs = session.run(None, port_values(case, observation, batch_size))
    names = [value.name for value in session.get_outputs()]
    check_actions(case, dict(zip(names, outputs, strict=True)), expected)


@pytest.mark.parametrize("artefact", ["saved_model", "saved_model_xla"])
@pytest.mark.parametrize("name", NAMES)
def test_plain_tensorflow_runs_the_signature(exported, name, artefact):
    import tensorflow as tf

    case = exported(name)
    observation, expected = reference(case, 5)
    loaded = tf.saved_model.load(str(case.bundle.artefact_path(artefact)))
    outputs = loaded.signatures["serving_default"](
        **{k: tf.constant(v) for k, v in port_values(case, observation, 5).items()}
    )
    check_actions(case, outputs, expected)
    manifest = case.bundle.manifest
    assert set(outputs) == {port.name for port in manifest.action_ports} | {
        port.next_name for port in manifest.carry_ports
    }


def test_the_portable_flavour_needs_no_xla(exported):
    from tensorflow.core.protobuf import saved_model_pb2

    operations = {}
    for artefact in ("saved_model", "saved_model_xla"):
        path = exported("population_graph").bundle.artefact_path(artefact) / "saved_model.pb"
        proto = saved_model_pb2.SavedModel()
        proto.ParseFromString(path.read_bytes())
        operations[artefact] = {
            node.op
            for function in proto.meta_graphs[0].graph_def.library.function
            for node in function.node_def
        }
    assert "XlaCallModule" in operations["saved_model_xla"]
    assert not any("Xla" in op for op in operations["saved_model"])


@pytest.mark.parametrize("name", NAMES)
def test_plain_jax_runs_the_stablehlo(exported, name):
    case = exported(name)
    observation, expected = reference(case, 5)
    data = bytearray(case.bundle.artefact_path("stablehlo").read_bytes())
    program = jax.export.deserialize(data)
    outputs = program.call(*port_values(case, observation, 5).values())
    names = [port.name for port in case.bundle.manifest.action_ports]
    check_actions(case, dict(zip(names, outputs, strict=False)), expected)


def test_the_stablehlo_is_written_for_older_readers(exported):
    artefact = exported("lstm").bundle.manifest.artefacts["stablehlo"]
    assert artefact.details["stablehlo_version"] == STABLEHLO_VERSION
    data = exported("lstm").bundle.artefact_path("stablehlo").read_bytes()
    assert f"StableHLO_v{STABLEHLO_VERSION}".encode() in data


def test_a_time_ordered_buffer_costs_no_index_arithmetic(exported):
    """Delays are fixed reads and one concatenation; nothing is left of the ring's pointer."""
    import onnx

    model = onnx.load(exported("population_graph").bundle.artefact_path("onnx"))
    kinds = {node.op_type for node in model.graph.node}
    assert not kinds & {"Mod", "GatherND", "ScatterND", "Where", "Equal", "Range", "Cast"}
    readers = [node.op_type for node in model.graph.node if "carry.delays" in node.input]
    assert readers == ["Split"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_graph_exported_for_one_batch_size_runs(tmp_path, batch_size):
    """tf2onnx fuses a product with a scaled addend into an invalid Gemm where shapes are known."""
    generator = np.random.default_rng(0)
    network = make_delayed_graph_policy(4, 2, nnx.Rngs(0), hidden_size=8)
    bundle = export_policy(
        network, np.zeros(4, np.float32), tmp_path / "p", formats=["onnx"], batch_size=batch_size
    )
    session = load_policy(bundle).session(batch_size=batch_size)
    network.eval()
    carry = network.initialize_state(batch_size)
    for _ in range(6):
        observation = generator.normal(size=(batch_size, 4)).astype(np.float32)
        output = network(carry, observation)
        carry = output.next_state
        np.testing.assert_allclose(
            session.step(observation), output.output.actions, rtol=1e-5, atol=1e-6
        )


def test_an_optimizer_of_tf2onnx_that_fails_does_no_harm(monkeypatch):
    step = build_step(*make("mlp"))
    whole = convert(step).SerializeToString()

    def fail(self, graph, iteration):
        raise ValueError("broken")

    # Nothing in this graph that it could reorder.
    monkeypatch.setattr("tf2onnx.optimizer.transpose_optimizer.TransposeOptimizer.optimize", fail)
    assert convert(step).SerializeToString() == whole
    assert "TF2ONNX_CATCH_ERRORS" not in os.environ
