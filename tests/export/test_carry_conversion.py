"""A carry crosses between JAX and a session in the middle of an episode, both ways."""

from __future__ import annotations

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from export import CarryConversionError, to_exported_carry, to_network_carry
from export.prng_keys import is_key
from serving import load_policy

WITH_CARRY = ["lstm", "gru", "delay", "ar1", "population_graph", "two_arm", "user_module"]


def observations_like(example, steps, batch_size, seed=0):
    generator = np.random.default_rng(seed)
    return [
        jax.tree.map(
            lambda leaf: generator.normal(size=(batch_size, *leaf.shape)).astype(leaf.dtype),
            example,
        )
        for _ in range(steps)
    ]


class JaxRollout:
    """The user's network under jax.jit in evaluation mode."""

    def __init__(self, network, batch_size):
        copy = nnx.clone(network)
        copy.eval()
        graphdef, state = nnx.split(copy)
        self.carry = nnx.merge(graphdef, state, copy=True).initialize_state(batch_size)
        self._step = jax.jit(lambda c, o: self._call(nnx.merge(graphdef, state, copy=True), c, o))

    @staticmethod
    def _call(network, carry, observation):
        output = network(carry, observation)
        return output.output.actions, output.next_state

    def step(self, observation):
        action, self.carry = self._step(self.carry, observation)
        return action


def assert_close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", WITH_CARRY)
@pytest.mark.parametrize("taken_after", [1, 5])
def test_a_session_continues_where_jax_stopped(exported, name, taken_after):
    case = exported(name)
    rollout = JaxRollout(case.network, 3)
    session = load_policy(case.bundle, runtime="onnx").session(batch_size=3)
    stream = observations_like(case.observation, 14, 3)
    for observation in stream[:taken_after]:
        rollout.step(observation)
    session.carry = to_exported_carry(case.bundle, rollout.carry)
    for observation in stream[taken_after:]:
        assert_close(session.step(observation), rollout.step(observation))


@pytest.mark.parametrize("name", WITH_CARRY)
def test_jax_continues_where_a_session_stopped(exported, name):
    case = exported(name)
    session = load_policy(case.bundle, runtime="onnx").session(batch_size=2)
    rollout = JaxRollout(case.network, 2)
    stream = observations_like(case.observation, 12, 2)
    for observation in stream[:5]:
        session.step(observation)
    carry = to_network_carry(case.bundle, session.carry)
    assert jax.tree.structure(carry) == jax.tree.structure(rollout.carry)
    for own, fresh in zip(jax.tree.leaves(carry), jax.tree.leaves(rollout.carry), strict=True):
        assert own.shape == fresh.shape and own.dtype == fresh.dtype
    rollout.carry = carry
    for observation in stream[5:]:
        assert_close(session.step(observation), rollout.step(observation))


def test_rows_with_different_ring_pointers_convert_exactly(exported):
    """Environments that were reset at different times have their pointers anywhere."""
    case = exported("population_graph")
    rollout = JaxRollout(case.network, 3)
    stream = observations_like(case.observation, 9, 3)
    for t, observation in enumerate(stream):
        rollout.step(observation)
        if t in (1, 6):
            fresh = nnx.clone(case.network).initialize_state(3)
            row = {1: 0, 6: 2}[t]
            rollout.carry = jax.tree.map(
                lambda new, old, row=row: old.at[row].set(new[row]), fresh, rollout.carry
            )
    pointers = rollout.carry[1]["action"][1]["populations"]["slow"]["buffer_idx"]
    assert len(set(np.asarray(pointers).tolist())) > 1
    exported_carry = to_exported_carry(case.bundle, rollout.carry)
    session = load_policy(case.bundle, runtime="stablehlo").session(batch_size=3)
    session.carry = exported_carry
    observation = stream[0]
    assert_close(session.step(observation), rollout.step(observation))
    there_and_back = to_exported_carry(case.bundle, to_network_carry(case.bundle, exported_carry))
    for port, values in exported_carry.items():
        np.testing.assert_array_equal(there_and_back[port], values)


def test_time_order_holds_the_newest_value_first(exported):
    case = exported("delay")
    rollout = JaxRollout(case.network, 1)
    stream = observations_like(case.observation, 4, 1)
    for observation in stream:
        rollout.step(observation)
    buffer = to_exported_carry(case.bundle, rollout.carry)["carry.1.action.0.buffer"]
    normalizer = case.network.layers[0]
    seen = [np.asarray(normalizer((), observation).output) for observation in stream]
    np.testing.assert_allclose(buffer[0, 0], seen[3][0], rtol=1e-6)
    np.testing.assert_allclose(buffer[0, 2], seen[1][0], rtol=1e-6)


def test_a_carry_without_a_batch_axis_becomes_a_batch_of_one(exported):
    case = exported("gru")
    session = load_policy(case.bundle).session()
    session.step(observations_like(case.observation, 1, 1)[0][0])
    carry = to_network_carry(case.bundle, session.carry)
    assert [leaf.shape for leaf in jax.tree.leaves(carry)] == [(1, 24)]


def test_keys_that_did_not_travel_come_back_different_for_every_row(exported):
    case = exported("ar1")
    session = load_policy(case.bundle).session(batch_size=3)
    carry = to_network_carry(case.bundle, session.carry)
    keys = [leaf for leaf in jax.tree.leaves(carry) if is_key(leaf)]
    assert len({tuple(row) for row in np.asarray(jax.random.key_data(keys[0])).tolist()}) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: [c[0], {"action": c[1]["action"]}], "missing"),
        (lambda c: jax.tree.map(lambda x: x[..., :-1], c), "shape"),
        (lambda c: jax.tree.map(lambda x: x.astype(jp.float16), c), "dtype"),
    ],
)
def test_a_carry_of_another_layout_is_refused(exported, change, message):
    case = exported("gru")
    carry = change(nnx.clone(case.network).initialize_state(2))
    with pytest.raises(CarryConversionError, match=message):
        to_exported_carry(case.bundle, carry)


def test_surplus_and_missing_ports_are_named(exported):
    case = exported("gru")
    with pytest.raises(CarryConversionError, match=r"carry\.1\.action\.0.*unexpected \['other'\]"):
        to_network_carry(case.bundle, {"other": np.zeros((1, 24), np.float32)})
