import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from training_cases import (
    CountingEnv,
    CountingNetwork,
    PointEnv,
    make_lstm_networks,
    make_point_networks,
)

from nnx_ppo.algorithms import replay
from nnx_ppo.algorithms.replay import replay_rollout
from nnx_ppo.algorithms.rollout import unroll_env
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

pytestmark = pytest.mark.usefixtures("quick_compile")


def _rollout(env, networks, n_envs=4, length=7):
    env_state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), n_envs))
    network_state = networks.initialize_state(n_envs)
    rollout = unroll_env(env, env_state, networks, network_state, length, jax.random.key(1))[2]
    return network_state, rollout


@pytest.mark.parametrize("make_networks", [make_point_networks, make_lstm_networks])
def test_replay_reproduces_actions_likelihoods_and_values(make_networks):
    networks = make_networks()
    network_state, rollout = _rollout(EpisodeWrapper(PointEnv(), 3), networks)
    assert bool(jp.any(rollout.done))
    result = replay_rollout(
        networks, network_state, rollout.obs, rollout.rollout_extras, rollout.done
    )
    for replayed, recorded in zip(
        jax.tree.leaves(result.output), jax.tree.leaves(rollout.network_output), strict=True
    ):
        np.testing.assert_allclose(replayed, recorded, rtol=1e-5, atol=1e-5)
    assert result.regularization.shape == ()


def test_one_batch_gives_what_stepping_gives():
    networks = make_point_networks(entropy_weight=0.0)
    network_state, rollout = _rollout(EpisodeWrapper(PointEnv(), 3), networks)
    arguments = (network_state, rollout.obs, rollout.rollout_extras)

    def loss(networks, run):
        result = run(networks)
        return jp.sum(result.output.loglikelihoods) + jp.sum(
            jp.square(result.output.value_estimates)
        )

    def at_once(networks):
        return replay._replay_as_one_batch(
            networks, *arguments, rollout.done.shape, rollout.next_obs
        )

    def step_by_step(networks):
        return replay._replay_step_by_step(networks, *arguments, rollout.done, rollout.next_obs)

    first, second = at_once(networks), step_by_step(networks)
    assert first is not None
    # The actions after the last observation are drawn anew; only the critic's values are used.
    first, second = (r._replace(next_output=r.next_output.value_estimates) for r in (first, second))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    gradients = [nnx.grad(loss)(networks, run) for run in (at_once, step_by_step)]
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_scalar_regularization_loss_is_taken_step_by_step():
    class SumOverBatch(CountingNetwork):
        """Without carry; its loss is a sum over the batch, which one big batch would inflate."""

        def initialize_state(self, batch_size):
            return ()

        def reset_state(self, prev_state):
            return prev_state

        def __call__(self, module_state, obs, rollout_extras=None):
            out = super().__call__(jp.zeros(obs.shape[0], jp.int32), obs, rollout_extras)
            return out.replace(next_state=(), regularization_loss=jp.sum(jp.ones(obs.shape[0])))

    networks = SumOverBatch()
    network_state, rollout = _rollout(CountingEnv(), networks)
    before = int(networks.n_calls[...])
    result = replay_rollout(
        networks, network_state, rollout.obs, rollout.rollout_extras, rollout.done
    )
    assert float(result.regularization) == 4.0
    assert int(networks.n_calls[...]) - before == 7 * 4


def test_next_output_continues_the_carry_that_the_reset_threw_away():
    class CarryValue(CountingNetwork):
        def __call__(self, module_state, obs, rollout_extras=None):
            out = super().__call__(module_state, obs, rollout_extras)
            value = module_state.astype(jp.float32)
            return out.replace(output=out.output.replace(value_estimates=value))

    networks = CarryValue()
    network_state, rollout = _rollout(CountingEnv(episode_length=3), networks)
    result = replay_rollout(
        networks, network_state, rollout.obs, None, rollout.done, rollout.next_obs
    )
    np.testing.assert_array_equal(
        result.output.value_estimates[:, 0], [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0]
    )
    np.testing.assert_array_equal(
        result.next_output.value_estimates[:, 0], [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]
    )
