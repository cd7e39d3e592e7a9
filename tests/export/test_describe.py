"""What a bundle records about its network, for people who look at it without JAX."""

from __future__ import annotations

import export_networks
import numpy as np
import onnx
import pytest
from flax import nnx

from export.data_flow import describe_flow
from export.module_tree import count_operations, describe_graphs, describe_modules, function_name
from export.step import build_step
from serving import read_bundle


@pytest.fixture(scope="module")
def graph(exported):
    return exported("population_graph").bundle.structure


def test_the_structure_is_a_file_of_the_bundle_that_is_read_back(exported):
    bundle = exported("population_graph").bundle
    listed = [file.path for file in bundle.manifest.files]
    assert listed == ["initial_carry.safetensors", "golden.safetensors", "structure.json"]
    assert read_bundle(bundle.path).structure == bundle.structure


def test_modules_come_depth_first_with_their_weights(graph):
    by_path = {module.path: module for module in graph.modules}
    assert [module.depth for module in graph.modules[:4]] == [0, 1, 1, 2]
    linear = by_path["layers.1.action.layers.1.connections.0.transform.linear"]
    assert (linear.type, linear.parameters) == ("Linear", 8 * 16 + 16)
    assert [(v.name, v.shape, v.dtype, v.trained) for v in linear.variables] == [
        ("bias", [16], "float32", True),
        ("kernel", [8, 16], "float32", True),
    ]
    assert by_path[""].parameters == sum(
        np.prod(v.shape) for m in graph.modules for v in m.variables if v.trained
    )


def test_a_critic_has_no_operations_left(graph):
    by_path = {module.path: module for module in graph.modules}
    assert by_path["layers.1.value"].operations == 0
    assert by_path["layers.1.value"].parameters > 0
    assert by_path["layers.1.action"].operations > 40
    assert by_path["layers.0"].type == "Normalizer" and by_path["layers.0"].operations == 2


def test_populations_and_connections_keep_their_order_and_delays(graph):
    (described,) = graph.graphs
    assert [(p.name, p.size, p.remembers_steps) for p in described.populations] == [
        ("sensory", 8, 2),
        ("inter", 16, 3),
        ("slow", 10, 3),
        ("motor", 4, 0),
    ]
    assert described.populations[0].input_from == "obs"
    assert described.populations[1].activation == "tanh"
    assert described.populations[3].output_to == "motor"
    assert [(e.source, e.target, e.delay_steps, e.transform) for e in described.connections] == [
        ("sensory", "inter", 0, "Dense"),
        ("inter", "inter", 1, "Dense"),
        ("sensory", "slow", 2, "LSTM"),
        ("inter", "slow", 3, "Dense"),
        ("slow", "inter", 3, "Dense"),
        ("slow", "motor", 1, "Dense"),
        ("inter", "motor", 0, "Dense"),
    ]
    assert described.connections[0].parameters == 8 * 16 + 16


def test_data_flows_from_the_observation_through_the_modules_to_the_action(graph):
    nodes = graph.flow_nodes
    names = [(node.role, node.type) for node in nodes]
    assert names == [
        ("observation", "float32"),
        ("module", "Normalizer"),
        ("module", "PopulationGraph"),
        ("module", "NormalTanhSampler"),
        ("action", "float32"),
    ]
    within = [(e.source, e.target, e.elements) for e in graph.flow_edges if not e.carry]
    assert within == [(0, 1, 8), (1, 2, 8), (2, 3, 4), (3, 4, 2)]


def test_carry_is_an_edge_into_the_next_step(graph):
    (memory,) = [edge for edge in graph.flow_edges if edge.carry]
    assert (memory.source, memory.target) == (2, 2)
    # Two LSTM states of 10, and pasts of 2 x 8, 3 x 16 and 3 x 10.
    assert memory.elements == 2 * 10 + 16 + 48 + 30
    assert memory.carry == [
        "carry.1.action.1.connections.2.0",
        "carry.1.action.1.connections.2.1",
        "carry.delays",
    ]


def test_packed_delays_of_two_modules_are_not_taken_for_one_memory():
    import jax.numpy as jp

    from nnx_ppo.networks.containers import Sequential
    from nnx_ppo.networks.delay import Delay

    network = Sequential([Delay(jp.zeros(3), 2), Delay(jp.zeros(3), 4)])
    step = build_step(network, np.zeros(3, np.float32))
    assert [port.kind for port in step.carry_ports] == ["packed_delays"]
    copy = step.reference.merge()
    modules = describe_modules(copy, count_operations(step.closed.jaxpr))
    nodes, edges = describe_flow(step, copy, modules)
    index = {node.path: number for number, node in enumerate(nodes)}
    across = {(e.source, e.target): e.elements for e in edges if e.carry}
    assert across[index["layers.0"], index["layers.0"]] == 2 * 3
    assert across[index["layers.1"], index["layers.1"]] == 4 * 3


def test_two_arms_flow_side_by_side():
    network, observation = export_networks.make("two_arm")
    step = build_step(network, observation)
    copy = step.reference.merge()
    modules = describe_modules(copy, count_operations(step.closed.jaxpr))
    nodes, edges = describe_flow(step, copy, modules)
    into = {node.path: index for index, node in enumerate(nodes) if node.role == "action"}
    assert set(into) == {"action.arm_L", "action.arm_R"}
    reached = {into["action.arm_L"]}
    while more := {e.source for e in edges if e.target in reached} - reached:
        reached |= more
    paths = {nodes[index].path for index in reached}
    assert "obs.arm_L.touch" in paths and not any("arm_R" in path for path in paths)
    assert describe_graphs(copy) == []


def test_one_module_around_everything_is_opened():
    class Whole(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 4, rngs=rngs)
            self.second = nnx.Linear(4, 2, rngs=rngs)

        def initialize_state(self, batch_size):
            return {}

        def reset_state(self, state):
            return state

        def __call__(self, state, observation, rollout_extras=None):
            from nnx_ppo.networks.types import StatefulModuleOutput

            action = self.second(nnx.relu(self.first(observation)))
            return StatefulModuleOutput(state, action, 0.0, {})

    step = build_step(Whole(nnx.Rngs(0)), np.zeros(3, np.float32))
    copy = step.reference.merge()
    modules = describe_modules(copy, count_operations(step.closed.jaxpr))
    nodes, _ = describe_flow(step, copy, modules)
    assert {node.path for node in nodes if node.role == "module"} >= {"first", "second"}


def test_operations_are_counted_in_every_artefact(exported):
    bundle = exported("population_graph").bundle
    counts = bundle.structure.operations
    model = onnx.load(bundle.path / "onnx/policy.onnx")
    assert sum(counts["onnx"].values()) == len(model.graph.node)
    assert counts["saved_model"]["Tanh"] == counts["onnx"]["Tanh"] == 5
    assert counts["stablehlo"]["stablehlo.dot_general"] == 8
    assert counts["saved_model_xla"]["XlaCallModule"] == 1
    assert "stablehlo.py" not in counts["stablehlo"]


def test_the_normalizer_in_the_step_is_recorded_with_what_it_has_seen(graph):
    (normalizer,) = graph.normalizers
    assert (normalizer.path, normalizer.samples) == ("layers.0", 512.0)


def test_functions_are_named_without_an_address():
    import functools

    assert function_name(nnx.tanh) == "tanh"
    assert function_name(functools.partial(nnx.leaky_relu, negative_slope=0.1)) == "leaky_relu"
    assert function_name(lambda x: x) == "<lambda>"
    assert "0x" not in function_name(Callable())


class Callable:
    def __call__(self, x):
        return x
