"""Tests of recording networks: same numbers, shared weights, separate modes."""

import warnings
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks import recording
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.graph import PopulationGraph
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recording import (
    ACTIVATION_KEY,
    Recorder,
    _is_leaf,
    extract_activations,
    with_recording,
)
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Scale
from nnx_ppo.networks.variational import VariationalBottleneck


class Bag(StatefulModule):
    """A container of the user's own that keeps its children in a plain list."""

    def __init__(self, children: list[StatefulModule]):
        self.children = nnx.data(children)

    def __call__(
        self, module_state: Any, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        metrics = {}
        for index, child in enumerate(self.children):
            result = child(child.initialize_state(obs.shape[0]), obs)
            obs, metrics[f"child_{index}"] = result.output, result.metrics
        return StatefulModuleOutput(module_state, obs, 0.0, metrics)


def graph() -> PopulationGraph:
    net = PopulationGraph(nnx.Rngs(0))
    net.add_input("in", 2, input_from="x")
    net.add_output("out", 2)
    net.connect("in", "out", delay=1)
    net.finalize()
    return net


def stack() -> Sequential:
    return Sequential(
        [
            Normalizer(3),
            Parallel(rnn=LSTM(3, 4, nnx.Rngs(0)), ff=Dense(3, 4, nnx.Rngs(1))),
        ]
    )


def test_every_leaf_records_under_its_path() -> None:
    net = stack()
    recorded = with_recording(net)
    state, x = net.initialize_state(2), jp.ones((2, 3))
    assert jax.tree.structure(recorded.initialize_state(2)) == jax.tree.structure(state)
    plain, result = net(state, x), recorded(state, x)
    jax.tree.map(np.testing.assert_array_equal, plain.output, result.output)
    jax.tree.map(np.testing.assert_array_equal, plain.next_state, result.next_state)
    jax.tree.map(np.testing.assert_array_equal, plain.rollout_extras, result.rollout_extras)
    activations = extract_activations(result.metrics)
    np.testing.assert_array_equal(activations[0], x / 10.0)
    np.testing.assert_array_equal(activations[1]["rnn"], plain.output["rnn"])
    np.testing.assert_array_equal(activations[1]["ff"], plain.output["ff"])
    assert extract_activations(plain.metrics) is None


def test_the_original_keeps_its_modules_and_mode() -> None:
    net = Sequential([Dense(3, 4, nnx.Rngs(0)), VariationalBottleneck(2, nnx.Rngs(1))])
    recorded = with_recording(net)
    assert [type(layer) for layer in net.layers] == [Dense, VariationalBottleneck]
    assert [type(layer) for layer in recorded.layers] == [Recorder, Recorder]
    recorded.eval()
    assert recorded.layers[1].wrapped.deterministic is True
    assert net.layers[1].deterministic is False


def test_variables_are_shared() -> None:
    net = stack()
    recorded = with_recording(net)
    net.layers[1].components["ff"].linear.bias[...] = jp.full((4,), 9.0)
    shared = recorded.layers[1].components["ff"].wrapped.linear.bias
    np.testing.assert_array_equal(shared[...], [9.0] * 4)
    recorded.update_statistics([jp.ones((1, 2, 3)), {"rnn": None, "ff": None}])
    assert float(net.layers[0].counter[...]) == 2.0


def test_graphs_record_their_populations_themselves() -> None:
    net = Sequential([graph()])
    recorded = with_recording(net)
    assert isinstance(recorded.layers[0], PopulationGraph)
    assert recorded.layers[0].record_activations is True
    assert net.layers[0].record_activations is False
    assert isinstance(recorded.layers[0].connections[0].transform, Dense)
    state, obs = net.initialize_state(1), {"x": jp.ones((1, 2))}
    assert net(state, obs).metrics == {0: {}}
    activations = extract_activations(recorded(state, obs).metrics)
    assert sorted(activations[0]) == ["in", "out"]
    np.testing.assert_array_equal(activations[0]["in"], [[1.0, 1.0]])


def test_a_single_module_is_wrapped() -> None:
    dense = Dense(3, 4, nnx.Rngs(0))
    recorded = with_recording(dense)
    assert isinstance(recorded, Recorder)
    result = recorded((), jp.ones((1, 3)))
    np.testing.assert_array_equal(extract_activations(result.metrics), result.output)
    assert list(result.metrics) == [ACTIVATION_KEY]


def test_a_module_used_twice_gets_one_recorder() -> None:
    scale = Scale(2.0)
    recorded = with_recording(Sequential([scale, scale]))
    assert recorded.layers[0] is recorded.layers[1]


def test_children_in_plain_lists_are_found() -> None:
    net = Bag([Scale(2.0), Sequential([Scale(3.0)])])
    recorded = with_recording(Sequential([net]))
    result = nnx.jit(lambda n, s, x: n(s, x))(recorded, [()], jp.ones((1, 1)))
    np.testing.assert_array_equal(
        extract_activations({"first": result.metrics[0]["child_0"]})["first"], [[2.0]]
    )
    assert isinstance(net.children[0], Scale)


def test_recording_runs_in_jit() -> None:
    recorded = with_recording(stack())
    step = nnx.jit(lambda n, s, x: extract_activations(n(s, x).metrics))
    activations = step(recorded, recorded.initialize_state(2), jp.ones((2, 3)))
    assert jax.tree.map(jp.shape, activations) == {0: (2, 3), 1: {"rnn": (2, 4), "ff": (2, 4)}}


def test_recording_twice_warns_and_returns_the_same_object() -> None:
    recorded = with_recording(stack())
    with pytest.warns(UserWarning, match="already has recorders"):
        assert with_recording(recorded) is recorded
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_recording(stack())


def test_leaves_are_modules_without_modules_inside() -> None:
    assert _is_leaf(Dense(3, 4, nnx.Rngs(0)))
    assert _is_leaf(LSTM(3, 4, nnx.Rngs(0)))
    assert not _is_leaf(Sequential([Scale(1.0)]))
    assert not _is_leaf(Parallel(a=Scale(1.0)))
    assert not _is_leaf(graph())
    assert not _is_leaf(Recorder(Scale(1.0)))
    assert not _is_leaf(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))
    assert not _is_leaf("text")
    assert not _is_leaf(None)


def test_extraction_skips_everything_else() -> None:
    assert extract_activations(3.0) is None
    assert extract_activations({}) is None
    assert extract_activations({"a": {"loss": 1.0}, 0: {}}) is None
    assert extract_activations({0: {ACTIVATION_KEY: 5, "mu": 1}, 1: {"mu": 2}}) == {0: 5}


def test_public_names() -> None:
    assert recording.__all__ == [
        "ACTIVATION_KEY",
        "Recorder",
        "with_recording",
        "extract_activations",
    ]
