import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jp
import numpy as np
import pytest

from nnx_ppo.jax_dataclass import JaxDataclass
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper
from nnx_ppo.wrappers.reward_scaling_wrapper import RewardScalingWrapper


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class State(JaxDataclass):
    obs: Any
    done: Any
    reward: Any
    info: Any
    metrics: Any


class Env:
    """Ends by itself after ``length`` steps."""

    observation_size = 3
    action_size = 2
    dt = 0.01

    def __init__(self, length=1000, reward: Any = 1.0):
        self.length = length
        self.reward = reward

    def reset(self, rng):
        del rng
        return State(jp.zeros(3), jp.array(False), self.reward, {"count": jp.array(0)}, {})

    def step(self, state, action):
        del action
        count = state.info["count"] + 1
        info = {**state.info, "count": count}
        return state.replace(done=count >= self.length, info=info, reward=self.reward)

    def render(self, trajectory):
        return len(trajectory)


def _run(env, n_steps, seed=0):
    state = env.reset(jax.random.key(seed))
    states = [state]
    for _ in range(n_steps):
        state = env.step(state, jp.zeros(2))
        states.append(state)
    return states


def test_episodes_are_cut_and_marked_at_the_limit():
    states = _run(EpisodeWrapper(Env(), 4, random_start=False), 4)
    assert [float(state.done) for state in states] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert [bool(state.info["truncated"]) for state in states] == [False] * 4 + [True]
    assert [int(state.info["step_counter"]) for state in states] == [0, 1, 2, 3, 4]
    assert states[0].done.dtype == states[4].done.dtype == jp.float32


@pytest.mark.parametrize("length", [3, 4])
def test_an_episode_that_ends_by_itself_is_not_truncated(length):
    states = _run(EpisodeWrapper(Env(length), 4, random_start=False), length)
    assert float(states[-1].done) == 1.0
    assert not bool(states[-1].info["truncated"])


def test_the_inner_environments_own_truncation_counts():
    class Cut(Env):
        def step(self, state, action):
            state = super().step(state, action)
            return state.replace(info={**state.info, "truncated": state.info["count"] >= 2})

    states = _run(EpisodeWrapper(Cut(), 10, random_start=False), 2)
    assert float(states[-1].done) == 1.0
    assert bool(states[-1].info["truncated"])


def test_counters_start_at_random_in_the_first_half():
    reset = jax.vmap(EpisodeWrapper(Env(), 10).reset)
    counters = np.asarray(reset(jax.random.split(jax.random.key(0), 256)).info["step_counter"])
    assert counters.min() == 0
    assert counters.max() == 4
    assert counters.dtype == np.int32


@pytest.mark.parametrize("max_len", [1, 2, 3])
def test_the_shortest_limits_work(max_len):
    states = _run(EpisodeWrapper(Env(), max_len), max_len)
    assert float(states[-1].done) == 1.0
    assert int(states[0].info["step_counter"]) == 0


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="max_len=0"):
        EpisodeWrapper(Env(), 0)


def test_info_is_not_changed_in_place():
    inner = Env()
    state = inner.reset(jax.random.key(0))

    class Fixed(Env):
        def reset(self, rng):
            return state

    wrapped = EpisodeWrapper(Fixed(), 4).reset(jax.random.key(0))
    assert set(state.info) == {"count"}
    before = dict(wrapped.info)
    EpisodeWrapper(Fixed(), 4).step(wrapped, jp.zeros(2))
    assert wrapped.info == before


def test_attributes_of_the_inner_environment_are_reachable_through_wrappers():
    env = RewardScalingWrapper(EpisodeWrapper(Env(length=7), 4), 0.5)
    assert (env.observation_size, env.action_size) == (3, 2)
    assert (env.dt, env.length, env.max_len) == (0.01, 7, 4)
    assert env.render([1, 2]) == 2
    assert not hasattr(env, "no_such_thing")


def test_wrappers_can_be_copied_and_looked_at_before_they_are_complete():
    env = EpisodeWrapper(Env(), 4)
    assert copy.deepcopy(env).max_len == 4
    assert not hasattr(EpisodeWrapper.__new__(EpisodeWrapper), "anything")


def test_rewards_are_scaled_in_reset_and_step():
    states = _run(RewardScalingWrapper(Env(reward=2.0), 0.25), 1)
    assert [float(state.reward) for state in states] == [0.5, 0.5]


def test_each_of_several_rewards_is_scaled():
    env = RewardScalingWrapper(Env(reward={"a": jp.array(1.0), "b": jp.array(-3.0)}), 2)
    rewards = _run(env, 1)[-1].reward
    assert {name: float(value) for name, value in rewards.items()} == {"a": 2.0, "b": -6.0}
