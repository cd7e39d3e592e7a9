"""Tests of population graphs: sums, delays, order, errors, programs."""

from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from jax import export

from nnx_ppo.networks import graph as graph_package
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.delay_line import RING, TIME_ORDERED
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph import Connection, Population, PopulationGraph
from nnx_ppo.networks.graph.topology import topological_order
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.types import ACTIVATION_KEY, StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Scale


class Charged(StatefulModule):
    """Passes its input on and returns a given regularization and metrics."""

    def __init__(self, regularization: Any, output: Any = None):
        self.regularization = nnx.data(regularization)
        self.output = nnx.data(output)

    def __call__(
        self, module_state: Any, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        output = obs if self.output is None else self.output
        return StatefulModuleOutput(module_state, output, self.regularization, {"seen": obs})


def build(size: int = 1, **connections: Any) -> PopulationGraph:
    """Returns an unfinished graph with an input ``in`` and an output ``out``."""
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_input("in", size, input_from="x")
    graph.add_output("out", size)
    return graph


def rollout(graph: PopulationGraph, xs: Any, key: str = "x") -> tuple[Any, np.ndarray]:
    state, outputs = graph.initialize_state(xs.shape[1]), []
    for x in xs:
        result = graph(state, {key: x})
        state = result.next_state
        outputs.append(np.asarray(result.output["out"]))
    return state, np.asarray(outputs)


def counting(steps: int) -> jax.Array:
    return jp.arange(1.0, steps + 1.0).reshape(steps, 1, 1)


def test_an_input_passes_through_unchanged() -> None:
    graph = build(3)
    graph.connect("in", "out", transform=Scale(1.0))
    graph.finalize()
    x = jp.asarray([[0.1, -2.0, 3.5], [1e-30, 0.0, 1e30]])
    result = graph(graph.initialize_state(2), {"x": x})
    np.testing.assert_array_equal(result.output["out"], x)
    assert result.metrics == {}
    assert result.rollout_extras == {"connections": [None]}
    assert result.next_state == {"populations": {"in": {}, "out": {}}, "connections": [()]}


def test_incoming_connections_are_summed_and_activated_once() -> None:
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_input("a", 2, input_from="x", activation=nnx.relu)
    graph.add_input("b", 2, input_from="y")
    graph.add_output("out", 2, activation=lambda value: value + 100.0)
    graph.connect("a", "out", transform=Scale(2.0))
    graph.connect("b", "out", transform=Scale(1.0))
    graph.finalize()
    obs = {"x": jp.asarray([[-1.0, 3.0]]), "y": jp.asarray([[10.0, -5.0]])}
    output = graph(graph.initialize_state(1), obs).output["out"]
    np.testing.assert_array_equal(output, [[110.0, 101.0]])


@pytest.mark.parametrize("line", [RING, TIME_ORDERED], ids=repr)
def test_a_self_connection_of_delay_one_accumulates(line: Any) -> None:
    graph = build()
    graph.connect("in", "out", transform=Scale(1.0))
    graph.connect("out", "out", transform=Scale(1.0), delay=1)
    graph.finalize()
    graph.delay_line = line
    np.testing.assert_array_equal(rollout(graph, counting(4))[1].ravel(), [1.0, 3.0, 6.0, 10.0])


@pytest.mark.parametrize("line", [RING, TIME_ORDERED], ids=repr)
def test_delays_of_one_source_share_its_buffer(line: Any) -> None:
    graph = build()
    for delay, factor in [(0, 1.0), (1, 10.0), (3, 1000.0)]:
        graph.connect("in", "out", transform=Scale(factor), delay=delay)
    graph.finalize()
    graph.delay_line = line
    assert graph.populations["in"].max_outgoing_delay == 3
    state, outputs = rollout(graph, counting(5))
    np.testing.assert_array_equal(outputs.ravel(), [1.0, 12.0, 23.0, 1034.0, 2045.0])
    assert state["populations"]["in"]["buffer"].shape == (1, 3, 1)


@pytest.mark.parametrize("line", [RING, TIME_ORDERED], ids=repr)
def test_reset_equals_a_fresh_carry_and_rows_are_independent(line: Any) -> None:
    graph = build(2)
    graph.connect("in", "out", delay=2)
    graph.connect("in", "out", transform=LSTM(2, 2, nnx.Rngs(1)), delay=1)
    graph.finalize()
    graph.delay_line = line
    xs = jp.asarray(np.random.default_rng(0).normal(size=(4, 3, 2)), jp.float32)
    used, outputs = rollout(graph, xs)
    fresh = graph.initialize_state(3)
    jax.tree.map(np.testing.assert_array_equal, graph.reset_state(used), fresh)
    jax.tree.map(np.testing.assert_array_equal, jax.vmap(graph.reset_state)(used), fresh)
    _, alone = rollout(graph, xs[:, 1:2])
    np.testing.assert_allclose(alone, outputs[:, 1:2], atol=1e-6)


def test_carry_layout() -> None:
    graph = build(2)
    graph.connect("in", "out", delay=3)
    graph.finalize()
    state = graph.initialize_state(4)
    entry = state["populations"]["in"]
    assert (entry["buffer"].shape, entry["buffer"].dtype) == ((4, 3, 2), jp.float32)
    assert (entry["buffer_idx"].shape, entry["buffer_idx"].dtype) == ((4,), jp.int32)
    assert state["populations"]["out"] == {}
    result = graph(state, {"x": jp.ones((4, 2))})
    assert jax.tree.structure(result.next_state) == jax.tree.structure(state)
    np.testing.assert_array_equal(result.next_state["populations"]["in"]["buffer_idx"], [1] * 4)
    graph.delay_line = TIME_ORDERED
    assert sorted(graph.initialize_state(4)["populations"]["in"]) == ["buffer"]
    result = graph(graph.initialize_state(4), {"x": jp.ones((4, 2))})
    assert sorted(result.next_state["populations"]["in"]) == ["buffer"]


def test_order_follows_dependencies_not_insertion() -> None:
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_output("out", 1, output_to="torque")
    graph.add_population("hidden", 1)
    graph.add_input("in", 1, input_from="x")
    graph.connect("hidden", "out", transform=Scale(3.0))
    graph.connect("in", "hidden", transform=Scale(2.0))
    graph.finalize()
    output = graph(graph.initialize_state(1), {"x": jp.ones((1, 1))}).output
    assert list(output) == ["torque"]
    np.testing.assert_array_equal(output["torque"], [[6.0]])


def test_topological_order_is_first_in_first_out() -> None:
    assert topological_order(["d", "c", "b", "a"], [("b", "c"), ("d", "a"), ("b", "c")]) == (
        "d",
        "b",
        "a",
        "c",
    )


def test_a_population_without_input_is_its_activation_of_zero() -> None:
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_output("out", 2, activation=nnx.sigmoid)
    graph.finalize()
    output = graph(graph.initialize_state(3), {"anything": jp.ones((3, 7))}).output["out"]
    np.testing.assert_array_equal(output, np.full((3, 2), 0.5))
    with pytest.raises(ValueError, match="batch size"):
        graph(graph.initialize_state(3), {})


def test_default_transforms_are_linear_and_fit_their_ends() -> None:
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_population("a", 3)
    graph.add_population("b", 5)
    graph.connect("a", "b", delay=1, reciprocal=True)
    graph.finalize()
    forward, backward = graph.connections
    assert isinstance(forward, Connection) and isinstance(forward.transform, Dense)
    assert (forward.src, forward.dst, forward.delay) == ("a", "b", 1)
    assert (backward.src, backward.dst, backward.delay) == ("b", "a", 1)
    assert (forward.transform.in_features, forward.transform.out_features) == (3, 5)
    assert (backward.transform.in_features, backward.transform.out_features) == (5, 3)
    assert isinstance(graph.populations["b"], Population)
    assert graph.populations["b"].max_outgoing_delay == 1
    assert len(jax.tree.leaves(nnx.state(graph))) == 4


def test_regularization_is_summed_over_connections_not_over_the_batch() -> None:
    graph = build()
    graph.connect("in", "out", transform=Charged(jp.asarray([1.0, 2.0])))
    graph.connect("in", "out", transform=Charged(0.5))
    graph.finalize()
    loss = graph(graph.initialize_state(2), {"x": jp.ones((2, 1))}).regularization_loss
    np.testing.assert_array_equal(loss, [1.5, 2.5])
    plain = build()
    plain.connect("in", "out")
    plain.finalize()
    assert plain(plain.initialize_state(2), {"x": jp.ones((2, 1))}).regularization_loss.shape == ()


def test_metrics_of_transforms_are_kept() -> None:
    graph = build(2)
    graph.connect("in", "out", transform=Scale(1.0))
    graph.connect("in", "out", transform=Charged(0.0))
    graph.finalize()
    x = jp.ones((1, 2))
    metrics = graph(graph.initialize_state(1), {"x": x}).metrics
    np.testing.assert_array_equal(metrics["connections"][1]["seen"], x)
    assert list(metrics["connections"]) == [1]


def test_recorded_activations_are_those_of_every_population() -> None:
    graph = build()
    graph.connect("in", "out", transform=Scale(2.0))
    graph.finalize()
    graph.record_activations = True
    metrics = graph(graph.initialize_state(1), {"x": jp.full((1, 1), 3.0)}).metrics
    assert {k: float(v[0, 0]) for k, v in metrics[ACTIVATION_KEY].items()} == {
        "in": 3.0,
        "out": 6.0,
    }


def test_extras_and_statistics_reach_the_transforms() -> None:
    graph = build(2)
    graph.connect("in", "out", transform=Sequential([Normalizer(2), Dense(2, 2, nnx.Rngs(0))]))
    graph.connect("in", "out", transform=Sequential([Dense(2, 2, nnx.Rngs(0))]), delay=1)
    graph.finalize()
    state = graph.initialize_state(3)
    result = graph(state, {"x": jp.ones((3, 2))})
    again = graph(state, {"x": jp.ones((3, 2))}, result.rollout_extras)
    np.testing.assert_array_equal(again.output["out"], result.output["out"])
    graph.update_statistics(jax.tree.map(lambda x: x[None], result.rollout_extras))
    assert float(graph.connections[0].transform[0].counter[...]) == 3.0


def test_graphs_run_in_jit_scan_and_grad() -> None:
    graph = build(2)
    graph.add_population("hidden", 4, activation=nnx.tanh)
    graph.connect("in", "hidden")
    graph.connect("hidden", "hidden", delay=1)
    graph.connect("hidden", "out", delay=2)
    graph.finalize()
    xs = jp.asarray(np.random.default_rng(0).normal(size=(6, 3, 2)), jp.float32)
    _, expected = rollout(graph, xs)

    def loss(graph: PopulationGraph, xs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(carry: Any, x: jax.Array) -> Any:
            result = graph(carry, {"x": x})
            return result.next_state, result.output["out"]

        _, outputs = jax.lax.scan(step, graph.initialize_state(3), xs)
        return jp.sum(outputs**2), outputs

    gradients, outputs = nnx.jit(nnx.grad(loss, has_aux=True))(graph, xs)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    leaves = jax.tree.leaves(gradients)
    assert len(leaves) == 6
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert float(jp.max(jp.abs(gradients["connections"][1]["transform"]["linear"]["kernel"]))) > 0.0


@pytest.mark.parametrize("line", [RING, TIME_ORDERED], ids=repr)
def test_programs_trace_with_a_symbolic_batch(line: Any) -> None:
    graph = build(2)
    graph.add_population("constant", 2, activation=nnx.sigmoid)
    graph.connect("constant", "out", transform=Scale(1.0))
    graph.connect("in", "out", transform=LSTM(2, 2, nnx.Rngs(0)), delay=1)
    graph.connect("out", "out", delay=3)
    graph.finalize()
    graph.delay_line = line
    (batch,) = export.symbolic_shape("b")

    def step(state: Any, obs: Any) -> Any:
        result = graph(state, obs)
        return result.output, result.next_state

    state, obs = graph.initialize_state(3), {"x": jp.ones((3, 2))}
    args = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype), (state, obs)
    )
    exported = export.export(jax.jit(step))(*args)
    expected = step(state, obs)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, atol=1e-6),
        exported.call(state, obs),
        expected,
    )


def test_sums_start_from_their_first_term() -> None:
    graph = build(2)
    graph.connect("in", "out", transform=Scale(2.0))
    graph.connect("in", "out", transform=Scale(3.0))
    graph.finalize()
    jaxpr = jax.make_jaxpr(lambda x: graph(graph.initialize_state(1), {"x": x}).output)(
        jp.ones((1, 2))
    )
    names = [equation.primitive.name for equation in jaxpr.eqns if equation.outvars[0].aval.shape]
    assert names == ["mul", "mul", "add"]


def test_connections_that_read_the_same_past_share_one_read() -> None:
    graph = build(2)
    for _ in range(3):
        graph.connect("in", "out", transform=Scale(2.0), delay=2)
    graph.finalize()
    state = graph.initialize_state(1)
    text = str(jax.make_jaxpr(lambda s, x: graph(s, {"x": x}).output)(state, jp.ones((1, 2))))
    assert text.count("gather[") == 1


def test_populations_may_be_named_like_methods_of_a_dict() -> None:
    graph = PopulationGraph(nnx.Rngs(0))
    graph.add_input("items", 1, input_from="x")
    graph.add_output("values", 1)
    graph.connect("items", "values", transform=Scale(2.0), delay=1)
    graph.finalize()
    step = nnx.jit(lambda g, s, x: g(s, {"x": x}))
    first = step(graph, graph.initialize_state(1), jp.ones((1, 1)))
    second = step(graph, first.next_state, jp.ones((1, 1)))
    np.testing.assert_array_equal(second.output["values"], [[2.0]])


def test_counts_in_observations_become_floats() -> None:
    graph = build()
    graph.connect("in", "out", transform=Scale(0.5), delay=1)
    graph.finalize()
    state = graph(graph.initialize_state(1), {"x": jp.asarray([[3]])}).next_state
    output = graph(state, {"x": jp.asarray([[0]])}).output["out"]
    np.testing.assert_array_equal(output, [[1.5]])


def test_build_errors_name_the_offender() -> None:
    graph = build()
    for add in (graph.add_population, graph.add_output):
        with pytest.raises(ValueError, match="'in' already exists"):
            add("in", 1)
    with pytest.raises(ValueError, match="'in' already exists"):
        graph.add_input("in", 1, input_from="y")
    with pytest.raises(ValueError, match="'empty' must have a positive size, got 0"):
        graph.add_population("empty", 0)
    with pytest.raises(ValueError, match="no population 'nowhere'"):
        graph.connect("nowhere", "out")
    with pytest.raises(ValueError, match="no population 'nowhere'"):
        graph.connect("in", "nowhere")
    with pytest.raises(ValueError, match="'in' -> 'out': delay must not be negative, got -1"):
        graph.connect("in", "out", delay=-1)
    with pytest.raises(ValueError, match="reciprocal=True"):
        graph.connect("in", "out", transform=Scale(1.0), reciprocal=True)
    with pytest.raises(ValueError, match="output 'out' is that of population 'out'"):
        graph.add_output("second", 1, output_to="out")
    assert len(graph.connections) == 0


def test_cycles_without_delay_are_refused_by_name() -> None:
    graph = build()
    graph.add_population("a", 1)
    graph.add_population("b", 1)
    graph.connect("in", "a")
    graph.connect("a", "b")
    graph.connect("b", "a")
    graph.connect("b", "out", delay=1)
    with pytest.raises(ValueError, match=r"\['a', 'b'\]"):
        graph.finalize()
    loop = build()
    loop.connect("out", "out")
    with pytest.raises(ValueError, match=r"\['out'\]"):
        loop.finalize()


def test_calls_before_and_changes_after_finalize_are_refused() -> None:
    graph = build()
    graph.connect("in", "out", transform=Scale(1.0))
    for call in (
        lambda: graph(None, {"x": jp.ones((1, 1))}),
        lambda: graph.initialize_state(1),
        lambda: graph.reset_state({}),
    ):
        with pytest.raises(RuntimeError, match=r"call finalize\(\)"):
            call()
    graph.finalize()
    for call in (
        lambda: graph.add_population("a", 1),
        lambda: graph.add_input("a", 1, input_from="y"),
        lambda: graph.add_output("a", 1),
        lambda: graph.connect("in", "out"),
        graph.finalize,
    ):
        with pytest.raises(RuntimeError, match="is finalized"):
            call()


def test_observations_of_another_size_are_refused() -> None:
    graph = build(3)
    graph.connect("in", "out", transform=Scale(1.0))
    graph.finalize()
    state = graph.initialize_state(2)
    with pytest.raises(ValueError, match=r"'in' has size 3.*'x' has shape \(2, 1\)"):
        graph(state, {"x": jp.ones((2, 1))})
    with pytest.raises(KeyError, match=r"'in' reads.*'x'; found \['y'\]"):
        graph(state, {"y": jp.ones((2, 3))})
    with pytest.raises(KeyError, match="'x'"):
        graph(state, jp.ones((2, 3)))


def test_transforms_of_another_size_are_refused() -> None:
    graph = build(3)
    graph.connect("in", "out", transform=Charged(0.0, output=jp.ones((2, 1))))
    graph.finalize()
    with pytest.raises(ValueError, match=r"'in' -> 'out'.*returned shape \(2, 1\)"):
        graph(graph.initialize_state(2), {"x": jp.ones((2, 3))})


def test_a_carry_of_another_graph_is_refused() -> None:
    graph = build()
    graph.connect("in", "out", transform=Scale(1.0))
    graph.finalize()
    for carry in (
        {"populations": {"in": {}}, "connections": [()]},
        {"populations": {"in": {}, "out": {}}, "connections": []},
    ):
        with pytest.raises(ValueError, match="the carry has the populations"):
            graph(carry, {"x": jp.ones((1, 1))})
        with pytest.raises(ValueError, match="the carry has the populations"):
            graph.reset_state(carry)


def test_public_names_of_the_package() -> None:
    assert graph_package.__all__ == ["PopulationGraph", "Population", "Connection"]
