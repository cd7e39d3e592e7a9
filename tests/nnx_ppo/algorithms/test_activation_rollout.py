import jax
import numpy as np
import pytest
from training_cases import CountingEnv, PointEnv, make_lstm_networks

from nnx_ppo.algorithms.rollout import record_activations_rollout
from nnx_ppo.networks.recording import extract_activations, with_recording
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_recorded_activations_equal_a_call_by_hand():
    env, networks = EpisodeWrapper(PointEnv(), 4), make_lstm_networks()
    key = jax.random.key(0)
    activations, dones = record_activations_rollout(env, networks, 3, 6, key)
    assert dones.shape == (6, 3)
    assert not bool(dones[0].any())
    assert bool(dones[5].all())

    recorder = with_recording(make_lstm_networks())
    recorder.eval()
    state = recorder.initialize_state(3)
    obs = jax.vmap(env.reset)(jax.random.split(key, 3)).obs
    expected = extract_activations(recorder(state, obs, None).metrics)
    assert jax.tree.structure(expected) == jax.tree.structure(activations)
    for recorded, by_hand in zip(
        jax.tree.leaves(activations), jax.tree.leaves(expected), strict=True
    ):
        assert recorded.shape == (6, *by_hand.shape)
        np.testing.assert_allclose(recorded[0], by_hand, atol=1e-5)


def test_the_network_is_neither_converted_nor_switched():
    networks = make_lstm_networks()
    sampler = networks.layers[1].action.layers[-1]
    draws = int(sampler.rng.count[...])
    record_activations_rollout(EpisodeWrapper(PointEnv(), 4), networks, 2, 2, jax.random.key(0))
    assert networks.layers[1].action.layers[-1] is sampler
    assert not sampler.deterministic
    assert int(sampler.rng.count[...]) == draws


def test_the_mask_tells_where_the_episode_had_ended_before_the_step():
    class Env(CountingEnv):
        def reset(self, rng):
            state = super().reset(rng)
            return state.replace(obs=jax.numpy.zeros(2))

        def step(self, state, action):
            state = super().step(state, action)
            return state.replace(obs=jax.numpy.zeros(2))

    _, dones = record_activations_rollout(Env(3), make_lstm_networks(), 2, 5, jax.random.key(0))
    np.testing.assert_array_equal(dones[:, 0], [False, False, False, True, True])
