"""Tests of the containers: what flows where, and what they refuse."""

from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.containers import Concat, Parallel, Sequential, Splitter
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput


class Probe(StatefulModule):
    """Adds a constant, counts steps in its carry, and remembers what it was handed."""

    def __init__(self, amount: float, regularization: Any = 0.0):
        self.amount = amount
        self.regularization = nnx.data(regularization)
        self.updates = nnx.Variable(jp.zeros(()))

    def __call__(
        self, module_state: Any, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        replayed = 0.0 if rollout_extras is None else rollout_extras
        return StatefulModuleOutput(
            next_state=module_state + 1,
            output=obs + self.amount + replayed,
            regularization_loss=self.regularization,
            metrics={"amount": self.amount},
            rollout_extras=jp.full(obs.shape, 10.0 * self.amount),
        )

    def initialize_state(self, batch_size: int) -> jax.Array:
        return jp.zeros((batch_size,), jp.int32)

    def reset_state(self, prev_state: Any) -> Any:
        return prev_state * 0 - 1

    def update_statistics(self, rollout_extras: Any) -> None:
        self.updates[...] += jp.sum(rollout_extras)


def test_sequential_chains_outputs_and_keeps_one_entry_per_layer() -> None:
    net = Sequential([Probe(1.0, jp.ones(2)), Probe(2.0, 0.5)])
    state = net.initialize_state(2)
    result = net(state, jp.zeros((2, 1)))
    np.testing.assert_array_equal(result.output, [[3.0], [3.0]])
    np.testing.assert_array_equal(result.next_state, [[1, 1], [1, 1]])
    np.testing.assert_array_equal(result.regularization_loss, [1.5, 1.5])
    assert result.metrics == {0: {"amount": 1.0}, 1: {"amount": 2.0}}
    assert isinstance(result.rollout_extras, list)
    np.testing.assert_array_equal(net.reset_state(result.next_state), [[-1, -1], [-1, -1]])


def test_sequential_hands_each_layer_its_own_extras() -> None:
    net = Sequential([Probe(1.0), Probe(2.0)])
    result = net(net.initialize_state(1), jp.zeros((1, 1)), [jp.full((1, 1), 4.0), None])
    np.testing.assert_array_equal(result.output, [[7.0]])
    net.update_statistics([jp.ones((3, 1)), jp.ones((5, 1))])
    assert [float(layer.updates[...]) for layer in net.layers] == [3.0, 5.0]


def test_sequential_metrics_and_extras_have_entries_even_if_empty() -> None:
    net = Sequential([Dense(3, 2, nnx.Rngs(0))])
    result = net(net.initialize_state(1), jp.zeros((1, 3)))
    assert result.metrics == {0: {}}
    assert result.rollout_extras == [None]
    assert result.next_state == [()]
    assert result.regularization_loss.shape == ()
    assert float(result.regularization_loss) == 0.0


def test_layers_can_be_indexed_and_reused() -> None:
    net = Sequential([Probe(1.0), Probe(2.0)])
    longer = Sequential([*net.layers, Probe(3.0)])
    assert longer[0] is net.layers[0]
    assert [layer.amount for layer in longer[1:]] == [2.0, 3.0]
    assert len(longer) == 3
    output = longer(longer.initialize_state(1), jp.zeros((1, 1))).output
    np.testing.assert_array_equal(output, [[6.0]])


@pytest.mark.parametrize("carry", [[jp.zeros(1, jp.int32)], {}, (), [jp.zeros(1, jp.int32)] * 3])
def test_sequential_refuses_a_carry_of_another_length(carry: Any) -> None:
    net = Sequential([Probe(1.0), Probe(2.0)])
    with pytest.raises(ValueError, match="2 entries as carry"):
        net(carry, jp.zeros((1, 1)))
    with pytest.raises(ValueError, match="2 entries as carry"):
        net.reset_state(carry)


def test_sequential_refuses_extras_of_another_length() -> None:
    net = Sequential([Probe(1.0), Probe(2.0)])
    with pytest.raises(ValueError, match="2 entries as rollout extras"):
        net(net.initialize_state(1), jp.zeros((1, 1)), [None])
    with pytest.raises(ValueError, match="2 entries as rollout extras"):
        net.update_statistics([None, None, None])


def test_sequential_accepts_a_carry_that_became_a_tuple() -> None:
    net = Sequential([Probe(1.0)])
    assert isinstance(net((jp.zeros(1, jp.int32),), jp.zeros((1, 1))).next_state, list)


def test_parallel_gives_every_child_the_same_input() -> None:
    net = Parallel(a=Probe(1.0, jp.ones(2)), b=Probe(2.0, jp.full(2, 3.0)))
    result = net(net.initialize_state(2), jp.zeros((2, 1)))
    np.testing.assert_array_equal(result.output["a"], [[1.0], [1.0]])
    np.testing.assert_array_equal(result.output["b"], [[2.0], [2.0]])
    np.testing.assert_array_equal(result.regularization_loss, [4.0, 4.0])
    assert result.metrics == {"a": {"amount": 1.0}, "b": {"amount": 2.0}}
    net.update_statistics({"a": jp.ones(2), "b": jp.ones(3)})
    assert float(net.components["a"].updates[...]) == 2.0
    assert float(net.components["b"].updates[...]) == 3.0


def test_parallel_carry_follows_the_children() -> None:
    net = Parallel(rnn=LSTM(3, 4, nnx.Rngs(0)), ff=Dense(3, 2, nnx.Rngs(0)))
    state = net.initialize_state(5)
    assert state["ff"] == ()
    assert isinstance(state["rnn"], tuple)
    assert [leaf.shape for leaf in state["rnn"]] == [(5, 4), (5, 4)]
    assert jax.tree.structure(net.reset_state(state)) == jax.tree.structure(state)


def test_children_of_the_same_seed_agree() -> None:
    net = Parallel(a=Dense(3, 2, nnx.Rngs(7)), b=Dense(3, 2, nnx.Rngs(7)))
    output = net(net.initialize_state(4), jp.ones((4, 3))).output
    np.testing.assert_array_equal(output["a"], output["b"])


def test_extras_of_named_children_are_routed_by_name() -> None:
    net = Parallel({"z": Probe(1.0), "a": Probe(2.0)})
    extras = {"a": jp.full((1, 1), 5.0), "z": None}
    output = net(net.initialize_state(1), jp.zeros((1, 1)), extras).output
    assert {name: float(value[0, 0]) for name, value in output.items()} == {"z": 1.0, "a": 7.0}


def test_concat_joins_in_constructor_order() -> None:
    net = Concat(z=Probe(0.0), a=Probe(0.0))
    obs = {"a": jp.asarray([[1.0, 2.0]]), "z": jp.asarray([[3.0]]), "unused": jp.zeros((1, 9))}
    result = net(net.initialize_state(1), obs)
    np.testing.assert_array_equal(result.output, [[3.0, 1.0, 2.0]])
    assert result.metrics == {"z": {"amount": 0.0}, "a": {"amount": 0.0}}


@pytest.mark.parametrize("transform", ["jit", "clone", "split_merge", "scan"])
def test_concat_keeps_its_order_in_transformations(transform: str) -> None:
    net = Concat(z=Dense(3, 1, nnx.Rngs(0)), m=Dense(3, 2, nnx.Rngs(1)), a=Dense(3, 4, nnx.Rngs(2)))
    obs = {name: jp.ones((2, 3)) for name in ("z", "m", "a")}
    state = net.initialize_state(2)
    expected = net(state, obs).output
    if transform == "jit":
        got = nnx.jit(lambda n, s, x: n(s, x).output)(net, state, obs)
    elif transform == "clone":
        got = nnx.clone(net)(state, obs).output
    elif transform == "split_merge":
        got = nnx.merge(*nnx.split(net))(state, obs).output
    else:
        step = nnx.scan(
            lambda n, carry, _: (n(carry, obs).next_state, n(carry, obs).output),
            in_axes=(nnx.StateAxes({...: None}), nnx.Carry, 0),
            out_axes=(nnx.Carry, 0),
        )
        got = step(net, state, jp.zeros(1))[1][0]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_components_may_be_named_like_methods_of_a_dict() -> None:
    net = Parallel(values=Probe(1.0), keys=Probe(2.0), items=Probe(3.0))
    result = nnx.jit(lambda n, s, x: n(s, x))(net, net.initialize_state(1), jp.zeros((1, 1)))
    assert {name: float(v[0, 0]) for name, v in result.output.items()} == {
        "values": 1.0,
        "keys": 2.0,
        "items": 3.0,
    }


@pytest.mark.parametrize("container", [Parallel, Concat])
def test_named_containers_refuse_ambiguous_or_empty_construction(container: Any) -> None:
    with pytest.raises(ValueError, match="not both"):
        container({"a": Probe(1.0)}, b=Probe(2.0))
    for empty in ({}, None):
        with pytest.raises(ValueError, match="at least one"):
            container(empty)


def test_an_empty_mapping_and_keywords_are_refused_together() -> None:
    with pytest.raises(ValueError, match="not both"):
        Parallel({}, a=Probe(1.0))


def test_a_missing_entry_is_named() -> None:
    net = Concat(a=Probe(1.0), b=Probe(2.0))
    with pytest.raises(KeyError, match=r"\['b'\].*\['a', 'c'\]"):
        net(net.initialize_state(1), {"a": jp.zeros((1, 1)), "c": jp.zeros((1, 1))})
    with pytest.raises(TypeError, match="expected a dict"):
        net(net.initialize_state(1), jp.zeros((1, 1)))


def test_a_carry_with_other_names_is_refused() -> None:
    net = Parallel(a=Probe(1.0), b=Probe(2.0))
    with pytest.raises(ValueError, match=r"keys \['a', 'b'\] as carry, got \['a'\]"):
        net({"a": jp.zeros(1, jp.int32)}, jp.zeros((1, 1)))
    with pytest.raises(ValueError, match="rollout extras, got list"):
        net.update_statistics([])


def test_splitter_cuts_in_keyword_order_and_drops_the_rest() -> None:
    splitter = Splitter(c=1, a=2, b=3)
    result = splitter((), jp.arange(14.0).reshape(2, 7))
    np.testing.assert_array_equal(result.output["c"], [[0.0], [7.0]])
    np.testing.assert_array_equal(result.output["a"], [[1.0, 2.0], [8.0, 9.0]])
    np.testing.assert_array_equal(result.output["b"], [[3.0, 4.0, 5.0], [10.0, 11.0, 12.0]])
    assert (result.next_state, result.rollout_extras, result.metrics) == ((), None, {})
    jitted = nnx.jit(lambda s, x: s((), x).output)(splitter, jp.arange(7.0)[None])
    np.testing.assert_array_equal(jitted["a"], [[1.0, 2.0]])


def test_splitter_refuses_empty_and_too_short_inputs() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Splitter()
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"'a' must have a positive size, got {size}"):
            Splitter(a=size)
    with pytest.raises(ValueError, match=r"need 6 features.*\(2, 5\)"):
        Splitter(c=1, a=2, b=3)((), jp.zeros((2, 5)))
