"""Outputs beside the action: chosen by name, kept with their carry, proven like the rest."""

from __future__ import annotations

import export_networks
import jax
import numpy as np
import pytest
from flax import nnx

from export import ExportError, NetworkError, export_policy, verify_parity
from export.prng_keys import without_key_type
from export.step import build_step
from nnx_ppo.networks.recording import extract_activations, with_recording
from serving import load_policy, self_test

ALL = ("value", "distribution", "activations")


def evaluated(network, observation, rows=1):
    """Return what the recording network gives for the first step."""
    copy = with_recording(network)
    copy.eval()
    return copy(copy.initialize_state(rows), observation)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    network, observation = export_networks.make("population_graph")
    path = tmp_path_factory.mktemp("extras") / "policy"
    return network, export_policy(network, observation, path, extra_outputs=ALL)


def test_every_runtime_gives_the_extras_that_the_network_gives(graph):
    network, bundle = graph
    report = verify_parity(bundle, network, steps=60, batch_sizes=(1, 3), write=False)
    assert report.passed, report.summary
    names = [port.name for port in bundle.manifest.extra_output_ports]
    assert {"value", "distribution.mu", "distribution.sigma"} <= set(names)
    assert {"activations.0", "activations.1.action.1.slow"} <= set(names)
    for comparison in report.comparisons:
        assert set(names) <= {port.name for port in comparison.ports}
    assert self_test(load_policy(bundle)).passed


def test_a_session_has_the_extras_of_its_last_step(graph):
    network, bundle = graph
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    session = load_policy(bundle).session()
    assert session.extra_outputs == {}
    session.step(x)
    extras = session.extra_outputs
    expected = evaluated(network, x[None])
    recorded = extract_activations(expected.metrics)
    np.testing.assert_allclose(extras["value"], expected.output.value_estimates[0], atol=1e-5)
    np.testing.assert_allclose(extras["activations.0"], recorded[0][0], atol=1e-5)
    slow = recorded[1]["action"][1]["slow"]
    np.testing.assert_allclose(extras["activations.1.action.1.slow"], slow[0], atol=1e-5)
    sampler = expected.metrics["action" if "action" in expected.metrics else 1]["action"][4]
    np.testing.assert_allclose(extras["distribution.sigma"], sampler["sigma"][0], atol=1e-5)


def test_the_action_is_the_same_with_and_without_extras(graph, exported):
    plain = exported("population_graph").bundle
    np.testing.assert_array_equal(graph[1].golden["action"], plain.golden["action"])
    assert set(graph[1].golden) == set(plain.golden) | {
        port.name for port in graph[1].manifest.extra_output_ports
    }


def test_a_name_stands_for_all_below_it_and_nothing_else():
    network, observation = export_networks.make("two_arm")
    step = build_step(network, observation, extra_outputs=("distribution.arm_L", "value"))
    assert step.output_names[-3:] == [
        "distribution.arm_L.mu",
        "distribution.arm_L.sigma",
        "value.critic_only",
    ]
    assert [port.path for port in step.extra_output_ports][0] == ["distribution", "arm_L", "mu"]


def test_the_recorded_structure_is_that_of_the_users_network(graph, exported):
    structure = graph[1].structure
    assert structure is not None and "Recorder" not in {m.type for m in structure.modules}
    plain = exported("population_graph").bundle.structure
    assert [m.path for m in structure.modules] == [m.path for m in plain.modules]


def test_names_that_overlap_give_each_tensor_once():
    network, observation = export_networks.make("lstm")
    names = ("activations.1.action.0", "activations.1.action", "activations.1.action.0")
    step = build_step(network, observation, extra_outputs=names)
    chosen = [port.name for port in step.extra_output_ports]
    assert chosen == sorted(set(chosen)) and "activations.1.action.0" in chosen


def test_carry_that_only_an_extra_needs_is_kept():
    network, observation = export_networks.make("critic_lstm")
    assert build_step(network, observation).carry_ports == []
    hidden = build_step(network, observation, extra_outputs=("activations.1.value.0",))
    assert len(hidden.carry_ports) == 2
    actor = build_step(network, observation, extra_outputs=("distribution",))
    assert actor.carry_ports == []


def test_extras_change_nothing_in_the_callers_network():
    network, observation = export_networks.make("lstm")
    before = jax.tree.map(without_key_type, nnx.state(network))
    graphdef = nnx.graphdef(network)
    build_step(network, observation, extra_outputs=ALL)
    assert nnx.graphdef(network) == graphdef
    after = jax.tree.map(without_key_type, nnx.state(network))
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_a_network_that_records_already_is_taken_as_it_is():
    network, observation = export_networks.make("mlp")
    step = build_step(with_recording(network), observation, extra_outputs=("activations.0",))
    assert step.output_names[-1] == "activations.0"


@pytest.mark.parametrize("name", ["entropy", "activations.7", "distribution.m", "valu"])
def test_a_name_that_does_not_exist_lists_those_that_do(name):
    network, observation = export_networks.make("mlp")
    with pytest.raises(NetworkError) as raised:
        build_step(network, observation, extra_outputs=(name,))
    message = str(raised.value)
    assert f"extra output {name!r} does not exist; this network has value, " in message
    assert "distribution.mu, distribution.sigma, activations.0, " in message


def test_a_value_of_a_network_without_a_critic_says_what_it_takes():
    network, observation = export_networks.make("mlp")
    with pytest.raises(NetworkError, match="ends in a PPOAdapter"):
        build_step(network.layers[0], observation, extra_outputs=("value",))


@pytest.mark.parametrize("given", ["value", ("value", ""), (3,)])
def test_what_is_no_list_of_names_is_refused(tmp_path, types_unchecked, given):
    network, observation = export_networks.make("mlp")
    with pytest.raises(ExportError, match="extra_outputs must be a list of names"):
        export_policy(network, observation, tmp_path / "policy", extra_outputs=given)
    assert list(tmp_path.iterdir()) == []
