"""A step that resets rows itself, given a boolean for each."""

from __future__ import annotations

import export_networks
import jax
import jax.numpy as jp
import numpy as np
import onnxruntime
import pytest

from export import NetworkError, export_policy, verify_parity
from export.reset_input import with_reset_input
from export.step import build_step
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from serving import load_policy, self_test


class Odometer(StatefulModule):
    """A sum that a reset clears, beside a distance that it leaves alone."""

    def initialize_state(self, batch_size):
        return {"sum": jp.full((batch_size, 2), 3.0), "distance": jp.zeros((batch_size,))}

    def reset_state(self, prev_state):
        return {"sum": jp.full_like(prev_state["sum"], 3.0), "distance": prev_state["distance"]}

    def __call__(self, module_state, obs, rollout_extras=None):
        total = module_state["sum"] + obs
        distance = module_state["distance"] + jp.sum(jp.abs(obs), axis=-1)
        state = {"sum": total, "distance": distance}
        return StatefulModuleOutput(state, total + distance[:, None], jp.array(0.0), {})


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    network, observation = export_networks.make("population_graph")
    path = tmp_path_factory.mktemp("reset") / "policy"
    return network, export_policy(network, observation, path, reset_input=True)


def test_every_runtime_resets_rows_as_the_network_does(graph):
    network, bundle = graph
    assert bundle.manifest.reset_port is not None
    report = verify_parity(bundle, network, steps=150, batch_sizes=(1, 3), write=False)
    assert report.passed, report.summary
    assert {c.runtime for c in report.comparisons} == set(bundle.manifest.artefacts)
    assert all(self_test(load_policy(bundle, name)).passed for name in ("onnx", "stablehlo"))


def test_onnxruntime_alone_needs_no_initial_carry(graph):
    """From a carry of rubbish, the first reset gives what the golden trajectory has after it."""
    bundle = graph[1]
    golden, manifest = bundle.golden, bundle.manifest
    rows = golden["reset"].shape[1]
    session = onnxruntime.InferenceSession(
        bundle.artefact_path("onnx"), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    carry = {p.name: np.full((rows, *p.shape), 7, p.dtype) for p in manifest.carry_ports}
    clean = np.zeros(rows, bool)
    for t, reset in enumerate(golden["reset"]):
        observation = {p.name: golden[p.name][t] for p in manifest.observation_ports}
        values = session.run(names, {**carry, **observation, "reset": reset})
        outputs = dict(zip(names, values, strict=True))
        carry = {p.name: outputs[p.next_name] for p in manifest.carry_ports}
        clean |= reset
        np.testing.assert_allclose(
            outputs["action"][clean], golden["action"][t][clean], atol=1e-5, rtol=1e-5
        )
    assert clean.all()


def test_what_a_reset_keeps_goes_on(tmp_path):
    bundle = export_policy(
        Odometer(), np.zeros(2, np.float32), tmp_path / "p", formats=["onnx"], reset_input=True
    )
    session = load_policy(bundle).session(batch_size=2)
    one = np.ones((2, 2), np.float32)
    session.step(one)
    action = session.step(one, reset=[False, True])
    np.testing.assert_array_equal(action, [[9.0, 9.0], [8.0, 8.0]])
    np.testing.assert_array_equal(session.carry["carry.distance"], [4.0, 4.0])
    np.testing.assert_array_equal(session.carry["carry.sum"], [[5.0, 5.0], [4.0, 4.0]])


@pytest.mark.parametrize("reset_input", [True, False])
def test_resetting_in_a_step_is_resetting_before_it(exported, graph, reset_input):
    bundle = graph[1] if reset_input else exported("population_graph").bundle
    policy = load_policy(bundle)
    inside, before = policy.session(batch_size=3), policy.session(batch_size=3)
    generator = np.random.default_rng(0)
    for t in range(12):
        x = generator.normal(size=(3, 8)).astype(np.float32)
        rows = np.asarray([t % 3 == 0, False, t == 7])
        before.reset(rows)
        np.testing.assert_array_equal(inside.step(x, reset=rows), before.step(x))
    jax.tree.map(np.testing.assert_array_equal, inside.carry, before.carry)


def test_a_policy_without_memory_has_nothing_to_reset():
    network, observation = export_networks.make("mlp")
    with pytest.raises(NetworkError, match="leave reset_input out"):
        with_reset_input(build_step(network, observation))


def test_the_portable_step_pays_one_selection_for_each_carry(graph):
    import onnx

    model = onnx.load(graph[1].artefact_path("onnx"))
    selections = [node for node in model.graph.node if node.op_type == "Where"]
    assert len(selections) == len(graph[1].manifest.carry_ports)
