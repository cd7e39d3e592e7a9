"""Tests of the adapter that packs actions, log-likelihoods and values."""

from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx

from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.types import PPONetworkOutput, StatefulModule, StatefulModuleOutput
from nnx_ppo.networks.utils import Filter, Map


class Values(StatefulModule):
    """Returns the first feature, without a feature axis."""

    def __call__(
        self, module_state: Any, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        return StatefulModuleOutput(module_state, obs[:, 0], 0.0, {})


def actor(features: int, actions: int, seed: int = 0) -> Sequential:
    rngs = nnx.Rngs(seed)
    return Sequential([Dense(features, 2 * actions, rngs), NormalTanhSampler(rngs, 1e-2)])


def multi_head() -> Sequential:
    rngs = nnx.Rngs(0)
    trunk = Parallel(
        action_a=Dense(3, 4, rngs),
        action_b=Dense(3, 2, rngs),
        value_a=Dense(3, 1, rngs),
        value_b=Dense(3, 1, rngs),
    )
    samplers = Map({"a": NormalTanhSampler(rngs, 1e-2), "b": NormalTanhSampler(rngs, 1e-2)})
    return Sequential(
        [
            trunk,
            PPOAdapter(
                action=Sequential([Filter({"a": "action_a", "b": "action_b"}), samplers]),
                value=Filter({"a": "value_a", "b": "value_b"}),
            ),
        ]
    )


def test_single_head() -> None:
    net = PPOAdapter(action=actor(3, 3), value=Dense(3, 1, nnx.Rngs(1)))
    x = jp.ones((4, 3))
    result = net(net.initialize_state(4), x)
    assert isinstance(result.output, PPONetworkOutput)
    assert result.output.actions.shape == (4, 3)
    assert result.output.loglikelihoods.shape == (4,)
    expected = net.value((), x).output[:, 0]
    np.testing.assert_array_equal(result.output.value_estimates, expected)
    assert sorted(result.metrics) == ["action", "value"]
    np.testing.assert_array_equal(
        jp.tanh(result.rollout_extras["action"][1]), result.output.actions
    )
    assert result.rollout_extras["value"] is None


def test_multi_head_outputs_share_their_keys() -> None:
    net = multi_head()
    output = nnx.jit(lambda n, s, x: n(s, x).output)(net, net.initialize_state(3), jp.ones((3, 3)))
    assert jax.tree.map(jp.shape, output.actions) == {"a": (3, 2), "b": (3, 1)}
    assert jax.tree.map(jp.shape, output.loglikelihoods) == {"a": (3,), "b": (3,)}
    assert jax.tree.map(jp.shape, output.value_estimates) == {"a": (3,), "b": (3,)}


@pytest.mark.parametrize("network", ["single", "multi"])
def test_replay_reproduces_actions_and_likelihoods(network: str) -> None:
    if network == "single":
        net = PPOAdapter(action=actor(3, 3), value=Dense(3, 1, nnx.Rngs(1)))
    else:
        net = multi_head()
    state, x = net.initialize_state(4), jp.ones((4, 3))
    first = net(state, x)
    again = net(state, x, first.rollout_extras)
    jax.tree.map(np.testing.assert_array_equal, first.output, again.output)


def test_a_batch_of_one_without_feature_axis_keeps_its_axis() -> None:
    net = PPOAdapter(action=actor(3, 3), value=Values())
    output = net(net.initialize_state(1), jp.full((1, 3), 2.0)).output
    np.testing.assert_array_equal(output.value_estimates, [2.0])


def test_wide_values_are_left_as_they_are() -> None:
    net = PPOAdapter(action=actor(3, 3), value=Dense(3, 2, nnx.Rngs(1)))
    assert net(net.initialize_state(1), jp.ones((1, 3))).output.value_estimates.shape == (1, 2)


def test_carry_regularization_and_statistics_reach_both_ports() -> None:
    net = PPOAdapter(
        action=Sequential([Normalizer(3), *actor(3, 3).layers]),
        value=Sequential(
            [
                Normalizer(3),
                LSTM(3, 4, nnx.Rngs(0)),
                Dense(4, 1, nnx.Rngs(0), kernel_init=nnx.initializers.ones),
            ]
        ),
    )
    state = net.initialize_state(2)
    assert sorted(state) == ["action", "value"]
    result = net(state, jp.ones((2, 3)))
    assert float(jp.max(jp.abs(result.next_state["value"][1][0]))) > 0.0
    reset = net.reset_state(result.next_state)
    jax.tree.map(np.testing.assert_array_equal, reset, state)
    assert result.regularization_loss.shape == (2,)
    sampled = net.action(state["action"], jp.ones((2, 3)), result.rollout_extras["action"])
    assert sampled.regularization_loss.shape == (2,)
    net.update_statistics(jax.tree.map(lambda x: x[None], result.rollout_extras))
    for port in (net.action, net.value):
        assert float(port.layers[0].counter[...]) == 2.0


def test_an_action_port_without_sampler_is_refused() -> None:
    net = PPOAdapter(action=Parallel(arm=Dense(3, 2, nnx.Rngs(0))), value=Values())
    with pytest.raises(TypeError, match=r"output\['arm'\].*log_likelihood"):
        net(net.initialize_state(1), jp.ones((1, 3)))
