"""Small environments and networks with known behaviour, for the tests of training."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx

from nnx_ppo.jax_dataclass import JaxDataclass
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Parallel, Sequential
from nnx_ppo.networks.factories import make_mlp_actor_critic
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.types import (
    PPONetworkOutput,
    StatefulModule,
    StatefulModuleOutput,
)
from nnx_ppo.networks.utils import Flattener, Map


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class State(JaxDataclass):
    obs: Any
    done: Any
    reward: Any
    info: Any
    metrics: Any


class PointEnv:
    """A cart to be brought to a stop at the origin; an ideal policy earns about 0.98 per step."""

    observation_size = 2
    action_size = 1

    def reset(self, rng):
        obs = jax.random.uniform(rng, (2,), minval=-1.0, maxval=1.0)
        return State(obs, jp.array(False), jp.array(0.0), {}, {"distance": jp.array(0.0)})

    def step(self, state, action):
        velocity = jp.clip(state.obs[1] + 0.2 * action[0], -1.0, 1.0)
        position = state.obs[0] + 0.2 * velocity
        return state.replace(
            obs=jp.stack([position, velocity]),
            reward=1.0 - jp.abs(position) - 0.1 * jp.abs(velocity),
            done=jp.abs(position) > 2.0,
            metrics={"distance": jp.abs(position)},
        )


class CountingEnv:
    """Episodes of fixed length; the reward is 1 where the action equals the step's number."""

    observation_size = 1
    action_size = 1

    def __init__(self, episode_length=5):
        self.episode_length = episode_length

    def reset(self, rng):
        del rng
        # A Python number among the info, as hand-written environments have it.
        info = {"count": jp.array(0), "level": 3}
        return State(jp.zeros(1), jp.array(0.0), jp.array(0.0), info, {})

    def step(self, state, action):
        count = state.info["count"] + 1
        reward = (action[0] == state.info["count"].astype(jp.float32)).astype(jp.float32)
        return state.replace(
            obs=count[None].astype(jp.float32),
            done=(count >= self.episode_length).astype(jp.float32),
            reward=reward,
            info={**state.info, "count": count},
        )


class CallCount(nnx.Variable):
    pass


class CountingNetwork(StatefulModule):
    """Acts with the number of steps since its carry was reset, and counts its calls."""

    def __init__(self):
        self.n_calls = CallCount(jp.zeros((), jp.int32))
        self.weight = nnx.Param(jp.array(0.5))

    def initialize_state(self, batch_size):
        return jp.zeros(batch_size, jp.int32)

    def reset_state(self, prev_state):
        return jp.zeros_like(prev_state)

    def __call__(self, module_state, obs, rollout_extras=None):
        batch_size = obs.shape[0]
        self.n_calls[...] += batch_size
        action = module_state[:, None].astype(jp.float32)
        output = PPONetworkOutput(
            actions=action,
            loglikelihoods=jp.zeros(batch_size) + self.weight[...],
            value_estimates=jp.zeros(batch_size) + self.weight[...],
        )
        return StatefulModuleOutput(module_state + 1, output, jp.array(0.0), {})


class TwoArmEnv:
    """Two independent targets, observed, acted on and rewarded in dicts; bool ``done``."""

    def reset(self, rng):
        left, right = jax.random.uniform(rng, (2,), minval=-0.8, maxval=0.8)
        obs = {"left": {"target": left[None]}, "right": {"target": right[None], "bias": jp.ones(2)}}
        reward = {"left": jp.array(0.0), "right": jp.array(0.0)}
        return State(obs, jp.array(False), reward, {"truncated": jp.array(False), "t": 0}, {})

    def step(self, state, action):
        step = state.info["t"] + 1
        reward = {
            arm: 1.0 - jp.abs(action[arm][0] - state.obs[arm]["target"][0])
            for arm in ("left", "right")
        }
        truncated = step >= 8
        info = {"truncated": truncated, "t": step}
        return state.replace(reward=reward, done=truncated, info=info)


def make_point_networks(seed=0, hidden=(16,), **kwargs):
    sizes = list(hidden)
    return make_mlp_actor_critic(2, 1, sizes, sizes, nnx.Rngs(seed), **kwargs)


def make_lstm_networks(seed=0, size=8):
    rngs = nnx.Rngs(seed)
    actor = Sequential(
        [LSTM(2, size, rngs), Dense(size, 2, rngs), NormalTanhSampler(rngs, entropy_weight=1e-2)]
    )
    return Sequential([Normalizer(2), PPOAdapter(action=actor, value=Dense(2, 1, rngs))])


def make_two_arm_networks(seed=0):
    rngs = nnx.Rngs(seed)
    arms = ("left", "right")
    heads = Parallel({arm: Dense(16, 2, rngs) for arm in arms})
    samplers = Map({arm: NormalTanhSampler(rngs, entropy_weight=1e-3) for arm in arms})
    return Sequential(
        [
            Flattener(),
            Dense(4, 16, rngs, nnx.tanh),
            PPOAdapter(
                action=Sequential([heads, samplers]),
                value=Parallel({arm: Dense(16, 1, rngs) for arm in arms}),
            ),
        ]
    )
