import functools

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from training_cases import CountingEnv, CountingNetwork, PointEnv, make_point_networks

from nnx_ppo.algorithms.rollout import single_transition, unroll_env
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

pytestmark = pytest.mark.usefixtures("quick_compile")


def _start(env, networks, n_envs):
    keys = jax.random.split(jax.random.key(0), n_envs)
    return jax.vmap(env.reset)(keys), networks.initialize_state(n_envs)


@pytest.mark.parametrize("jitted", [False, True])
def test_network_and_environment_are_reset_in_the_same_step(jitted):
    env, networks = CountingEnv(episode_length=5), CountingNetwork()
    env_state, network_state = _start(env, networks, 6)
    unroll = nnx.jit(unroll_env, static_argnums=(0, 4)) if jitted else unroll_env

    key = jax.random.key(1)
    network_state, env_state, rollout = unroll(env, env_state, networks, network_state, 12, key)
    assert float(jp.sum(rollout.rewards)) == 12 * 6
    assert int(networks.n_calls[...]) == 12 * 6
    assert rollout.done.dtype == bool
    assert rollout.done.shape == (12, 6)
    np.testing.assert_array_equal(np.flatnonzero(rollout.done[:, 0]), [4, 9])
    np.testing.assert_array_equal(network_state, jp.full(6, 2))
    assert not bool(jp.any(rollout.truncated))
    # The observation after the last step of an episode is the one before the reset.
    np.testing.assert_array_equal(rollout.next_obs[4], jp.full((6, 1), 5.0))
    np.testing.assert_array_equal(rollout.obs[5], jp.zeros((6, 1)))

    _, _, rollout = unroll(env, env_state, networks, network_state, 12, jax.random.key(2))
    np.testing.assert_array_equal(np.flatnonzero(rollout.done[:, 0]), [2, 7])


def test_static_arguments_may_be_given_by_name_or_bound():
    env, networks = CountingEnv(), CountingNetwork()
    env_state, network_state = _start(env, networks, 2)
    by_name = nnx.jit(unroll_env, static_argnames=("env", "unroll_length"))
    result = by_name(
        env=env,
        env_state=env_state,
        networks=networks,
        network_state=network_state,
        unroll_length=3,
        rng_key_for_env_reset=jax.random.key(0),
    )
    bound = nnx.jit(functools.partial(unroll_env, env), static_argnums=(3,))
    other = bound(env_state, networks, network_state, 3, jax.random.key(0))
    np.testing.assert_array_equal(result[2].rewards, other[2].rewards)
    assert int(networks.n_calls[...]) == 12


def test_a_single_transition_reports_what_happened_before_the_reset():
    env, networks = CountingEnv(episode_length=1), CountingNetwork()
    env_state, network_state = _start(env, networks, 3)
    keys = jax.random.split(jax.random.key(0), 3)
    (network_state, env_state), transition = single_transition(
        env, networks, (network_state, env_state), keys
    )
    assert bool(jp.all(transition.done))
    np.testing.assert_array_equal(transition.rewards, jp.ones(3))
    np.testing.assert_array_equal(env_state.info["count"], jp.zeros(3))
    np.testing.assert_array_equal(network_state, jp.zeros(3))
    assert transition.metrics == {"env": {}, "net": {}}


@pytest.mark.parametrize("name", ["truncated", "truncation"])
def test_truncation_is_read_under_both_its_names(name):
    class Cut(CountingEnv):
        def reset(self, rng):
            state = super().reset(rng)
            return state.replace(info={**state.info, name: jp.array(0.0)})

        def step(self, state, action):
            state = super().step(state, action)
            return state.replace(info={**state.info, name: state.done})

    env, networks = Cut(episode_length=2), CountingNetwork()
    env_state, network_state = _start(env, networks, 2)
    rollout = unroll_env(env, env_state, networks, network_state, 4, jax.random.key(0))[2]
    assert rollout.truncated.dtype == bool
    np.testing.assert_array_equal(rollout.truncated[:, 0], [False, True, False, True])


def test_values_of_another_shape_than_rewards_are_refused():
    class Wide(CountingNetwork):
        def __call__(self, module_state, obs, rollout_extras=None):
            out = super().__call__(module_state, obs, rollout_extras)
            output = out.output.replace(value_estimates=jp.zeros((obs.shape[0], 1)))
            return out.replace(output=output)

    env, networks = CountingEnv(), Wide()
    env_state, network_state = _start(env, networks, 2)
    with pytest.raises(AssertionError, match=r"shape \(3, 2, 1\) .* reward has \(3, 2\)"):
        unroll_env(env, env_state, networks, network_state, 3, jax.random.key(0))


def test_values_of_another_structure_than_rewards_are_refused():
    class Named(CountingNetwork):
        def __call__(self, module_state, obs, rollout_extras=None):
            out = super().__call__(module_state, obs, rollout_extras)
            output = out.output.replace(value_estimates={"a": jp.zeros(obs.shape[0])})
            return out.replace(output=output)

    env, networks = CountingEnv(), Named()
    env_state, network_state = _start(env, networks, 2)
    with pytest.raises(ValueError):
        unroll_env(env, env_state, networks, network_state, 3, jax.random.key(0))


def test_the_step_counter_is_in_the_info_of_a_rollout():
    env, networks = EpisodeWrapper(PointEnv(), 10), make_point_networks()
    env_state, network_state = _start(env, networks, 64)
    assert "step_counter" in env_state.info
    env_state = unroll_env(env, env_state, networks, network_state, 24, jax.random.key(0))[1]
    counters = np.asarray(env_state.info["step_counter"])
    assert counters.max() <= 10
    assert counters.max() > 0
