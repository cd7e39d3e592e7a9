"""Rollouts that record what every layer of a network does."""

import functools
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx
from jaxtyping import Bool, Key

from nnx_ppo.algorithms.random_streams import with_streams_from
from nnx_ppo.algorithms.trees import promote_tree
from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.networks.recording import extract_activations, with_recording
from nnx_ppo.networks.types import StatefulModule


def record_activations_rollout(
    env: RLEnv,
    networks: StatefulModule,
    n_envs: int,
    max_episode_length: int,
    key: Key[jax.Array, ""],
) -> tuple[Any, Bool[jax.Array, "time batch"]]:
    """Runs episodes in eval mode and returns the output of every layer in every step.

    Args:
        env: The environment of a single robot.
        networks: The network; it is copied and stays as it is.
        n_envs: Number of episodes.
        max_episode_length: Number of steps. Environments are not reset when an episode ends.
        key: PRNG key of the episodes.

    Returns:
        Activations as ``networks.recording.extract_activations`` arranges them, leaves
        ``[time, batch, ...]``, and where the episode had ended before the step.
    """
    recorder = with_recording(with_streams_from(networks, key))
    recorder.eval()
    graphdef, variables = nnx.split(recorder)
    return _record(env, n_envs, max_episode_length, graphdef, variables, key)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _record(
    env: RLEnv,
    n_envs: int,
    max_episode_length: int,
    graphdef: Any,
    variables: Any,
    key: Key[jax.Array, ""],
) -> tuple[Any, Bool[jax.Array, "time batch"]]:
    networks = nnx.merge(graphdef, variables, copy=True)
    network_state = networks.initialize_state(n_envs)
    env_state = jax.vmap(env.reset)(jax.random.split(key, n_envs))
    variables = nnx.state(networks)

    def transition(variables: Any, network_state: Any, env_state: Any) -> Any:
        networks = nnx.merge(graphdef, variables, copy=True)
        out = networks(network_state, env_state.obs, None)
        next_env_state = jax.vmap(env.step)(env_state, out.output.actions)
        activations = extract_activations(out.metrics)
        return (nnx.state(networks), out.next_state, next_env_state), activations

    (_, _, next_env_state), _ = jax.eval_shape(transition, variables, network_state, env_state)
    env_state = promote_tree(env_state, next_env_state)
    stepped_from = env_state

    def step(carry: Any, _: None) -> Any:
        *states, finished = carry
        (variables, network_state, env_state), activations = transition(*states)
        ended = jp.asarray(env_state.done).astype(bool)
        env_state = promote_tree(env_state, stepped_from)
        return (variables, network_state, env_state, finished | ended), (activations, finished)

    start = (variables, network_state, env_state, jp.zeros(n_envs, bool))
    _, recorded = jax.lax.scan(step, start, None, length=max_episode_length)
    return recorded
