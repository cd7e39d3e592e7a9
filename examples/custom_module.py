"""Train and export a network with a module of your own.

    python examples/custom_module.py [STEPS]

A module keeps what it remembers in a carry that goes in and comes out; export finds the carry, and
the operations, by itself. Writes custom_policy/.
"""

import sys
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx

from export import export_policy, verify_parity
from nnx_ppo.algorithms.ppo import train_ppo
from nnx_ppo.environments import make_environment
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.containers import Sequential
from nnx_ppo.networks.factories import make_mlp
from nnx_ppo.networks.feedforward import Dense
from nnx_ppo.networks.normalizer import Normalizer
from nnx_ppo.networks.sampling_layers import NormalTanhSampler
from nnx_ppo.networks.types import StatefulModule, StatefulModuleOutput
from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper


class LeakyTraces(StatefulModule):
    """Adds to its input what is left of past inputs, each feature fading at a rate it learns."""

    def __init__(self, features: int):
        self.features = features
        self.rate = nnx.Param(jp.linspace(-2.0, 2.0, features))

    def __call__(
        self, module_state: jax.Array, obs: jax.Array, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        keep = nnx.sigmoid(self.rate[...])
        trace = keep * module_state + (1.0 - keep) * obs
        return StatefulModuleOutput(
            next_state=trace,
            # The difference to its own past tells a feature which way it moves.
            output=jp.concatenate([obs, obs - trace], axis=-1),
            regularization_loss=jp.zeros(()),
            metrics={},
        )

    def initialize_state(self, batch_size: int) -> jax.Array:
        return jp.zeros((batch_size, self.features))

    def reset_state(self, prev_state: jax.Array) -> jax.Array:
        return jp.zeros_like(prev_state)


def make_policy(observation_size: int, action_size: int, rngs: nnx.Rngs) -> Sequential:
    """Returns a policy and a critic that see the traces of their observations."""
    features = 64
    return Sequential(
        [
            Normalizer(observation_size),
            Dense(observation_size, features, rngs),
            LeakyTraces(features),
            PPOAdapter(
                action=Sequential(
                    [
                        make_mlp([2 * features, 64, 64], rngs, nnx.tanh),
                        Dense(64, 2 * action_size, rngs),
                        NormalTanhSampler(rngs, entropy_weight=1e-2, min_std=0.1),
                    ]
                ),
                value=make_mlp([2 * features, 64, 1], rngs, nnx.tanh, activation_last_layer=False),
            ),
        ]
    )


def main(total_steps: int) -> None:
    env = make_environment("swing_up_delayed")
    network = make_policy(env.observation_size, env.action_size, nnx.Rngs(0))
    train_ppo(EpisodeWrapper(env, env.episode_length), network, total_steps=total_steps)

    observation = env.reset(jax.random.key(0)).obs
    bundle = export_policy(
        network, observation, "custom_policy/", control_rate_hz=env.control_rate_hz
    )
    print("carry:", {port.name: port.shape for port in bundle.manifest.carry_ports})
    print(verify_parity("custom_policy/", network).summary)


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000)
