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
    make_point_networks,
    make_two_arm_networks,
)

from nnx_ppo.algorithms.random_streams import with_streams_from
from nnx_ppo.algorithms.rollout import eval_rollout
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

pytestmark = pytest.mark.usefixtures("quick_compile")
KEY = jax.random.key(0)


def test_rewards_and_lifespan_include_the_terminal_step_and_nothing_after_it():
    metrics = eval_rollout(CountingEnv(5), CountingNetwork(), 4, 20, KEY)
    # The reward is 1 in every step, also in those after the episode.
    assert float(metrics["eval/episode_reward/mean"]) == 5.0
    assert float(metrics["eval/episode_reward/std"]) == 0.0
    assert float(metrics["eval/lifespan/mean"]) == 5.0
    assert set(metrics) == {
        "eval/episode_reward/mean", "eval/episode_reward/std",
        "eval/lifespan/mean", "eval/lifespan/std",
    }  # fmt: skip


def test_episodes_are_cut_at_the_longest_length():
    metrics = eval_rollout(CountingEnv(50), CountingNetwork(), 4, 20, KEY)
    assert float(metrics["eval/episode_reward/mean"]) == 20.0
    assert float(metrics["eval/lifespan/mean"]) == 20.0


@pytest.mark.parametrize("percentiles", [(0, 50, 100), [0, 50, 100]])
def test_percentiles_come_beside_the_headline_mean(percentiles):
    metrics = eval_rollout(
        CountingEnv(5), CountingNetwork(), 4, 20, KEY, logging_percentiles=percentiles
    )
    assert set(metrics) == {
        "eval/episode_reward/mean", "eval/episode_reward/std",
        *(f"eval/episode_reward/p{p}" for p in (0, 50, 100)),
        *(f"eval/lifespan/p{p}" for p in (0, 50, 100)),
    }  # fmt: skip
    assert float(metrics["eval/episode_reward/p50"]) == 5.0


def test_no_percentiles_give_mean_and_deviation():
    metrics = eval_rollout(CountingEnv(5), CountingNetwork(), 4, 20, KEY, logging_percentiles=())
    assert float(metrics["eval/lifespan/mean"]) == 5.0


class Reporting(CountingNetwork):
    """Reports a constant per environment, a scalar without batch axis, a flag and a vector."""

    def __call__(self, module_state, obs, rollout_extras=None):
        out = super().__call__(module_state, obs, rollout_extras)
        metrics = {
            "one": jp.ones(obs.shape[0]),
            "child": {0: {"scalar": jp.array(2.0)}},
            "flag": jp.ones(obs.shape[0], bool),
            "vector": jp.broadcast_to(jp.array([1.0, 3.0]), (obs.shape[0], 2)),
        }
        return out.replace(metrics=metrics)


def test_network_metrics_are_averages_over_each_episode():
    metrics = eval_rollout(
        env=CountingEnv(5),
        networks=Reporting(),
        n_envs=4,
        max_episode_length=20,
        key=KEY,
        logging_level=LoggingLevel.NETWORK_METRICS,
    )
    assert float(metrics["eval/net/one/mean"]) == 1.0
    assert float(metrics["eval/net/child/0/scalar/mean"]) == 2.0
    assert float(metrics["eval/net/flag/mean"]) == 1.0
    assert float(metrics["eval/net/vector/mean"]) == 2.0
    assert float(metrics["eval/net/vector/std"]) == 1.0
    assert not any(name.startswith("eval/env") for name in metrics)


def test_environment_metrics_do_not_need_network_metrics():
    env = EpisodeWrapper(PointEnv(), 5, random_start=False)
    level = LoggingLevel.ENV_METRICS
    metrics = eval_rollout(env, make_point_networks(), 4, 5, KEY, None, level)
    assert 0.0 < float(metrics["eval/env/distance/mean"]) < 2.0
    assert not any(name.startswith("eval/net") for name in metrics)


def test_the_headline_is_the_sum_over_several_rewards():
    metrics = eval_rollout(
        env=TwoArmEnv(),
        networks=make_two_arm_networks(),
        n_envs=4,
        max_episode_length=20,
        key=KEY,
        logging_level=LoggingLevel.NETWORK_METRICS,
    )
    parts = [float(metrics[f"eval/episode_reward/{arm}/mean"]) for arm in ("left", "right")]
    assert float(metrics["eval/episode_reward/mean"]) == pytest.approx(sum(parts), abs=1e-4)
    assert float(metrics["eval/lifespan/mean"]) == 8.0
    assert any("mu" in name for name in metrics)


def test_rewards_after_the_episode_do_not_count_even_if_not_a_number():
    class Broken(CountingEnv):
        def step(self, state, action):
            state = super().step(state, action)
            return state.replace(reward=jp.where(state.info["count"] > 5, jp.nan, state.reward))

    metrics = eval_rollout(Broken(5), CountingNetwork(), 4, 20, KEY)
    assert float(metrics["eval/episode_reward/mean"]) == 5.0


def test_types_that_change_from_reset_to_step_are_reconciled():
    class Changing(CountingEnv):
        def step(self, state, action):
            state = super().step(state, action)
            return state.replace(done=state.done > 0)

    metrics = eval_rollout(Changing(5), CountingNetwork(), 4, 20, KEY)
    assert float(metrics["eval/lifespan/mean"]) == 5.0


def test_evaluation_leaves_the_network_as_it_was():
    networks = make_point_networks()
    before = [np.array(_numbers(leaf)) for leaf in jax.tree.leaves(nnx.state(networks))]
    env = EpisodeWrapper(PointEnv(), 5)
    eval_rollout(env, networks, 4, 5, KEY)
    for old, leaf in zip(before, jax.tree.leaves(nnx.state(networks)), strict=True):
        np.testing.assert_array_equal(old, _numbers(leaf))
    assert not networks.layers[1].action.layers[-1].deterministic


def test_the_same_key_gives_the_same_result_however_often_the_network_has_drawn():
    networks = make_point_networks()
    env = EpisodeWrapper(PointEnv(), 5)
    first = eval_rollout(env, networks, 4, 5, KEY)
    networks.layers[1].action.layers[-1].rng()
    second = eval_rollout(env, networks, 4, 5, KEY)
    other = eval_rollout(env, networks, 4, 5, jax.random.key(1))
    assert float(first["eval/episode_reward/mean"]) == float(second["eval/episode_reward/mean"])
    assert float(first["eval/episode_reward/mean"]) != float(other["eval/episode_reward/mean"])


def test_streams_of_a_copy_differ_from_the_originals_and_by_key():
    original = nnx.Rngs(0, action_sampling=1)
    copies = [with_streams_from(original, jax.random.key(seed)) for seed in (0, 0, 1)]
    draws = [np.asarray(jax.random.key_data(copy.action_sampling())) for copy in copies]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert int(original.action_sampling.count[...]) == 0
    assert not np.array_equal(draws[0], jax.random.key_data(original.action_sampling()))


def test_a_stream_with_many_keys_keeps_its_shape():
    split = nnx.Rngs(0).split(3)
    copy = with_streams_from(split, jax.random.key(1))
    assert copy.default.key[...].shape == (3,)
    assert not bool(jp.any(copy.default.key[...] == split.default.key[...]))


def _numbers(leaf):
    if jp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf
