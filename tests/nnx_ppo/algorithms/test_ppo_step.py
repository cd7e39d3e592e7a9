import warnings

import jax
import jax.numpy as jp
import numpy as np
import pytest
from flax import nnx
from training_cases import (
    CountingEnv,
    CountingNetwork,
    PointEnv,
    TwoArmEnv,
    make_lstm_networks,
    make_point_networks,
    make_two_arm_networks,
)

from nnx_ppo.algorithms.ppo import new_training_state, ppo_step
from nnx_ppo.algorithms.ppo_step import add_steps, shuffled_minibatches
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

pytestmark = pytest.mark.usefixtures("quick_compile")

# One object for all tests: a compiled step belongs to its environment.
POINT_ENV = EpisodeWrapper(PointEnv(), 5)

JITTED = nnx.jit(ppo_step, static_argnums=(0, 2, 3, 7, 8, 9, 10, 12, 13, 14))
DETAILED = LoggingLevel.ALL | LoggingLevel.ROLLOUT_OBS


def _step(env, state, n_envs=8, n_minibatches=2, level=LoggingLevel.LOSSES, combine=False, **more):
    percentiles = more.pop("percentiles", None)
    bootstrap = more.pop("bootstrap", False)
    return JITTED(
        env, state, n_envs, 6, 0.95, 0.99, 0.2, True, combine, 2, n_minibatches, 1.0, level,
        percentiles, bootstrap,
    )  # fmt: skip


def _assert_finite(metrics):
    for name, value in metrics.items():
        assert np.isfinite(np.asarray(value, np.float64)).all(), name


def test_a_step_updates_the_callers_network_and_counts_steps():
    networks = make_point_networks()
    env = POINT_ENV
    state = new_training_state(env, networks, 8, 0, learning_rate=1e-2)
    assert int(state.steps_taken) == 0
    before = np.array(networks.layers[1].value.layers[0].linear.kernel[...])
    draws = int(networks.layers[1].action.layers[-1].rng.count[...])

    state, metrics = _step(env, state)
    assert state.networks is networks
    assert int(state.steps_taken) == 48
    assert int(metrics["total_steps"]) == 48
    assert float(networks.layers[0].counter[...]) == 48.0
    after = networks.layers[1].value.layers[0].linear.kernel[...]
    assert np.max(np.abs(before - after)) > 1e-3
    assert int(networks.layers[1].action.layers[-1].rng.count[...]) > draws
    assert int(state.optimizer.step[...]) == 4

    state, _ = _step(env, state)
    assert int(state.steps_taken) == 96
    assert float(networks.layers[0].counter[...]) == 96.0


def test_the_second_step_is_not_compiled_again():
    traces = []

    class Traced(PointEnv):
        def step(self, state, action):
            traces.append(1)
            return super().step(state, action)

    env = EpisodeWrapper(Traced(), 5)
    state = new_training_state(env, make_point_networks(), 4, 0)
    state, _ = _step(env, state, n_envs=4)
    after_first = len(traces)
    assert after_first > 0
    _step(env, state, n_envs=4)
    assert len(traces) == after_first


def test_the_same_seed_gives_the_same_weights_bit_for_bit():
    results = []
    for _ in range(2):
        env = POINT_ENV
        networks = make_point_networks(seed=3)
        state = new_training_state(env, networks, 8, 5)
        for _ in range(2):
            state, _ = _step(env, state)
        results.append(jax.tree.leaves(nnx.state(networks, nnx.Param)))
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("percentiles", [None, (0, 50, 100)])
def test_everything_measured_is_finite(percentiles):
    env = POINT_ENV
    state = new_training_state(env, make_point_networks(), 8, 0, gradient_clipping=1.0)
    _, metrics = _step(env, state, level=DETAILED, percentiles=percentiles)
    _assert_finite(metrics)
    suffix = "mean" if percentiles is None else "p50"
    for name in (
        "losses/actor", "losses/critic", "losses/regularization", "losses/clipping_fraction",
        "losses/advantages", "losses/critic_R^2", "losses/predicted_value", "loglikelihood",
        "grad_norm", "weights", "env/distance", "net/1/action/2/mu", "rollout_batch/reward",
        "rollout_batch/action", "rollout_batch/obs",
    ):  # fmt: skip
        assert f"{name}/{suffix}" in metrics
    assert metrics["rollout_batch/done_rate"].shape == ()


@pytest.mark.parametrize("combine", [False, True])
def test_dicts_of_observations_actions_and_rewards(combine):
    env = TwoArmEnv()
    networks = make_two_arm_networks()
    state = new_training_state(env, networks, 8, 0)
    state, metrics = _step(env, state, level=DETAILED, combine=combine)
    _assert_finite(metrics)
    assert "losses/critic/left/mean" in metrics
    assert "rollout_batch/obs/right/bias/mean" in metrics
    assert int(state.steps_taken) == 48


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_recurrent_network_over_several_episodes_stays_finite(bootstrap):
    env = POINT_ENV
    networks = make_lstm_networks()
    state = new_training_state(env, networks, 8, 0)
    for _ in range(2):
        state, metrics = _step(env, state, bootstrap=bootstrap)
    _assert_finite(metrics)
    for leaf in jax.tree.leaves(nnx.state(networks, nnx.Param)):
        assert np.isfinite(leaf).all()


def test_gradients_change_only_params():
    env = CountingEnv()
    networks = CountingNetwork()
    state = new_training_state(env, networks, 4, 0, learning_rate=0.1)
    state, _ = _step(env, state, n_envs=4)
    # 6 rollout steps of 4 environments, then 4 updates with 6 replayed steps and a last value of 2.
    assert int(networks.n_calls[...]) == 6 * 4 + 4 * (6 + 1) * 2
    assert float(networks.weight[...]) != 0.5


def test_minibatches_deal_every_environment_once_per_epoch():
    indices = shuffled_minibatches(jax.random.key(0), 12, 3, 4)
    assert indices.shape == (12, 3)
    for epoch in np.asarray(indices).reshape(3, 12):
        assert sorted(epoch) == list(range(12))
    assert not np.array_equal(indices[:4], indices[4:8])


def test_minibatches_of_unequal_size_are_refused():
    env = CountingEnv()
    state = new_training_state(env, CountingNetwork(), 8, 0)
    with pytest.raises(TypeError, match="n_envs=8 .* n_minibatches=3"):
        _step(env, state, n_minibatches=3)


def test_no_key_is_used_for_two_purposes():
    env = CountingEnv()
    state = new_training_state(env, CountingNetwork(), 4, 0)
    new_state, _ = _step(env, state, n_envs=4)
    assert not jp.array_equal(
        jax.random.key_data(new_state.rng_key), jax.random.key_data(state.rng_key)
    )
    # Epoch keys derive from a key of their own: none of them is the next iteration's key.
    for epoch in range(4):
        assert jax.random.fold_in(state.rng_key, epoch) != new_state.rng_key or epoch == 2


def test_steps_are_counted_exactly_where_float32_no_longer_can():
    steps = add_steps(jp.uint32(2**24), 1)
    assert int(steps) == 2**24 + 1
    assert int(add_steps(jp.uint32(2**32 - 6), 5)) == 2**32 - 1
    assert new_training_state(POINT_ENV, make_point_networks(), 2, 0).steps_taken.dtype == jp.uint32


def test_new_training_state_can_be_jitted_with_a_traced_seed():
    env = POINT_ENV
    jitted = nnx.jit(new_training_state, static_argnums=(0, 2))
    state = jitted(env, make_point_networks(), 4, 7)
    direct = new_training_state(env, make_point_networks(), 4, 7)
    np.testing.assert_array_equal(state.env_states.obs, direct.env_states.obs)
    assert int(state.steps_taken) == 0


@pytest.mark.parametrize("weight_decay, decays", [(None, False), (False, False), (0.5, True)])
def test_weight_decay_shrinks_weights(weight_decay, decays):
    env = CountingEnv()
    networks = CountingNetwork()
    state = new_training_state(env, networks, 4, 0, 0.1, None, weight_decay)
    zeros = jax.tree.map(jp.zeros_like, nnx.state(networks, nnx.Param))
    state.optimizer.update(networks, zeros)
    assert float(networks.weight[...]) == pytest.approx(0.475 if decays else 0.5)


def test_a_network_without_weights_is_reported_once_and_trained_on():
    class Fixed(CountingNetwork):
        def __init__(self):
            super().__init__()
            self.weight = CallCountless(jp.array(0.5))

    class CallCountless(nnx.Variable):
        pass

    env = CountingEnv()
    state = new_training_state(env, Fixed(), 4, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, metrics = _step(env, state, n_envs=4, level=LoggingLevel.WEIGHTS)
    assert any("no nnx.Param" in str(warning.message) for warning in caught)
    assert not any(name.startswith("weights") for name in metrics)
