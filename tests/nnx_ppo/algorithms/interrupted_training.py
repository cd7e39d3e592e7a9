"""Trains with a checkpoint after each iteration, until someone kills the process.

Run as ``python interrupted_training.py DIRECTORY TOTAL_STEPS``; with a checkpoint in the
directory it goes on from there. Prints a digest of the weights at the end.
"""

import hashlib
import sys

import jax
from flax import nnx
from training_cases import CountingEnv, make_point_networks

from nnx_ppo.algorithms.checkpointing import (
    latest_checkpoint,
    load_checkpoint,
    make_checkpoint_fn,
)
from nnx_ppo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from nnx_ppo.algorithms.ppo import new_training_state, train_ppo

N_ENVS, LENGTH = 2, 5
STEPS = N_ENVS * LENGTH


class WideCountingEnv(CountingEnv):
    """Shows its count twice, which makes an observation of the network's size."""

    def reset(self, rng):
        return self._wide(super().reset(rng))

    def step(self, state, action):
        return self._wide(super().step(state, action))

    def _wide(self, state):
        return state.replace(obs=jax.numpy.tile(state.obs[:1], 2))


def train(directory, total_steps, checkpoint_fn=None):
    env = WideCountingEnv()
    networks = make_point_networks(hidden=(4,))
    config = TrainConfig(
        ppo=PPOConfig(N_ENVS, LENGTH, n_epochs=1, n_minibatches=1, learning_rate=1e-2),
        eval=EvalConfig(enabled=False),
        checkpoint_every_steps=STEPS,
    )
    state = new_training_state(env, networks, N_ENVS, config.seed, 1e-2)
    latest = latest_checkpoint(directory)
    if latest is not None:
        state = load_checkpoint(latest, networks, state.optimizer, env=env)["training_state"]
        print(f"resumed from {int(state.steps_taken)}", flush=True)
    train_ppo(
        env,
        networks,
        config,
        total_steps=total_steps,
        initial_state=state,
        checkpoint_fn=checkpoint_fn,
    )
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(nnx.state(networks, nnx.Param)):
        digest.update(jax.device_get(leaf).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    _, directory, total_steps = sys.argv
    print(train(directory, int(total_steps), make_checkpoint_fn(directory, keep_last=5)))
