"""The LiteRT file acts like the network, alone and in sessions; what it cannot hold is refused."""

from __future__ import annotations

import export_networks
import jax
import jax.numpy as jp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from flax import nnx
from lowered import FunctionPolicy

from export import ExportError, export_policy, verify_parity
from serving import BundleError, ServingError, load_policy, self_test

OBS = np.zeros(4, np.float32)


USUAL = ("mlp", "population_graph", "two_arm")
OTHERS = sorted(set(export_networks.NETWORKS) - {*USUAL, "user_module"})


@pytest.mark.parametrize(
    "name", [*USUAL, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_it_follows_the_network_at_any_batch_size(tmp_path, name):
    network, observation = export_networks.make(name)
    bundle = export_policy(network, observation, tmp_path / "policy", formats=["litert"])
    report = verify_parity(bundle, network, steps=60, batch_sizes=(1, 5))
    assert report.passed, report.summary
    assert {c.runtime for c in report.comparisons} == {"litert"}
    assert self_test(load_policy(bundle, runtime="litert")).passed


def test_the_plain_interpreter_runs_it_with_the_ports_as_names(tmp_path):
    network, observation = export_networks.make("lstm")
    bundle = export_policy(network, observation, tmp_path / "policy", formats=["litert"])
    interpreter = Interpreter(str(bundle.artefact_path("litert")))
    runner = interpreter.get_signature_runner()
    carry_ports = bundle.manifest.carry_ports
    inputs = {port.name: np.zeros((1, *port.shape), port.dtype) for port in carry_ports}
    (port,) = bundle.manifest.observation_ports
    inputs[port.name] = np.ones((1, *port.shape), np.float32)
    outputs = runner(**inputs)
    session = load_policy(bundle, runtime="litert").session(1)
    session.carry = {p.name: inputs[p.name] for p in bundle.manifest.carry_ports}
    action = session.step(inputs[port.name])
    np.testing.assert_array_equal(outputs["action"], action)
    for carry in bundle.manifest.carry_ports:
        np.testing.assert_array_equal(outputs[carry.next_name], session.carry[carry.name])


def test_integers_booleans_resets_and_extra_outputs(tmp_path):
    network, observation = export_networks.make("population_graph")
    options = {"reset_input": True, "extra_outputs": ["value"]}
    bundle = export_policy(
        network, observation, tmp_path / "policy", formats=["litert", "onnx"], **options
    )
    report = verify_parity(bundle, network, steps=100, batch_sizes=(3,))
    assert report.passed, report.summary
    mixed = FunctionPolicy(lambda x: jp.where(x["on"], x["level"].astype(jp.float32) / 255.0, -1.0))
    example = {"level": np.zeros(3, np.uint8), "on": np.zeros(3, bool)}
    bundle = export_policy(mixed, example, tmp_path / "mixed", formats=["litert"])
    report = verify_parity(bundle, mixed, steps=40, batch_sizes=(2,))
    assert report.passed, report.summary


def test_a_fixed_batch_is_the_only_one(tmp_path):
    network, observation = export_networks.make("mlp")
    bundle = export_policy(
        network, observation, tmp_path / "policy", formats=["litert"], batch_size=3
    )
    policy = load_policy(bundle, runtime="litert")
    assert verify_parity(bundle, network, steps=20).passed
    with pytest.raises(ServingError, match="batch of 3 only"):
        policy.session(2)


def test_two_exports_are_the_same_bytes(tmp_path):
    network, observation = export_networks.make("population_graph")
    files = [
        export_policy(network, observation, tmp_path / name, name="same", formats=["litert"])
        .artefact_path("litert")
        .read_bytes()
        for name in ("one", "two")
    ]
    assert files[0] == files[1]


def test_what_it_has_no_operation_for_is_refused_and_nothing_is_left(tmp_path):
    network = FunctionPolicy(lambda x: jax.lax.lgamma(x))
    with pytest.raises(
        ExportError, match=r"LiteRT cannot hold this step: .*Abs.* on f64.*formats="
    ):
        export_policy(network, OBS, tmp_path / "policy", formats=["onnx", "litert"])
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_and_wrong_options_are_refused(tmp_path, types_unchecked):
    network = FunctionPolicy(lambda x: x * nnx.Param(jp.arange(4.0))[...])
    bundle = export_policy(network, OBS, tmp_path / "policy", formats=["litert"])
    for threads in (0, True, "2", 10**6):
        with pytest.raises(ServingError, match="threads is"):
            load_policy(bundle, runtime="litert", threads=threads)
    file = bundle.artefact_path("litert")
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(BundleError, match=r"policy\.tflite"):
        load_policy(bundle.path, runtime="litert")
