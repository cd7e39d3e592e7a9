"""Rolling networks out in environments: for training, evaluation, recording and rendering."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx
from jaxtyping import Key

from nnx_ppo.algorithms.activation_rollout import record_activations_rollout
from nnx_ppo.algorithms.env_reset import reset_finished
from nnx_ppo.algorithms.evaluation import eval_rollout
from nnx_ppo.algorithms.render_rollout import (
    SlimData,
    SlimState,
    eval_rollout_for_render_scan,
    unstack_trajectory,
)
from nnx_ppo.algorithms.sharding import shard_environments
from nnx_ppo.algorithms.trees import tree_where
from nnx_ppo.algorithms.types import EnvState, RLEnv, Transition
from nnx_ppo.networks.types import ModuleState, StatefulModule

__all__ = [
    "SlimData",
    "SlimState",
    "eval_rollout",
    "eval_rollout_for_render_scan",
    "record_activations_rollout",
    "single_transition",
    "tree_where",
    "unroll_env",
    "unstack_trajectory",
]


def single_transition(
    env: RLEnv,
    networks: StatefulModule,
    carry: tuple[ModuleState, EnvState],
    rng_keys_for_env_reset: Key[jax.Array, " batch"],
) -> tuple[tuple[ModuleState, EnvState], Transition]:
    """Takes one step in every environment and starts new episodes where one ended.

    Args:
        env: The environment of a single robot.
        networks: The acting network; its Variables are updated in place.
        carry: The network's carry and the environment states, leaves ``[batch, ...]``.
        rng_keys_for_env_reset: One PRNG key per environment, used where an episode ended.

    Returns:
        The carry for the next step, with network and environment reset in the same places, and
        the transition before that reset.
    """
    network_state, env_state = carry
    out = networks(network_state, env_state.obs, None)
    next_env_state = jax.vmap(env.step)(env_state, out.output.actions)
    done = jp.asarray(next_env_state.done).astype(bool)

    transition = Transition(
        obs=env_state.obs,
        network_output=out.output,
        rewards=next_env_state.reward,
        done=done,
        truncated=truncation_of(next_env_state.info, done),
        next_obs=next_env_state.obs,
        metrics={"env": next_env_state.metrics, "net": out.metrics},
        rollout_extras=out.rollout_extras,
    )
    env_state = reset_finished(env, next_env_state, done, rng_keys_for_env_reset)
    network_state = tree_where(done, networks.reset_state(out.next_state), out.next_state)
    return (network_state, env_state), transition


def unroll_env(
    env: RLEnv,
    env_state: EnvState,
    networks: StatefulModule,
    network_state: ModuleState,
    unroll_length: int,
    rng_key_for_env_reset: Key[jax.Array, ""],
) -> tuple[ModuleState, EnvState, Transition]:
    """Steps a batch of environments, calling the network once per step on the whole batch.

    Args:
        env: The environment of a single robot.
        env_state: States of the batch, leaves ``[batch, ...]``.
        networks: The acting network; its Variables are updated in place.
        network_state: Its carry, leaves ``[batch, ...]``.
        unroll_length: Number of steps.
        rng_key_for_env_reset: PRNG key for the episodes that start on the way.

    Returns:
        The network's carry and the environment states after the last step, and the transitions,
        leaves ``[unroll_length, batch, ...]``.

    Raises:
        AssertionError: the critic's values and the environment's rewards differ in shape.
        ValueError: they differ in structure.
    """
    batch_size = env_state.done.shape[0]
    keys = jax.random.split(rng_key_for_env_reset, (unroll_length, batch_size))
    graphdef, variables = nnx.split(networks)

    def step(carry: Any, keys: Any) -> Any:
        variables, states = carry
        networks = nnx.merge(graphdef, variables, copy=True)
        states, transition = single_transition(env, networks, states, keys)
        states, transition = shard_environments((states, transition), batch_size)
        return (nnx.state(networks), states), transition

    (variables, (network_state, env_state)), rollout = jax.lax.scan(
        step, (variables, (network_state, env_state)), keys
    )
    nnx.update(networks, variables)
    _check_values_fit_rewards(rollout)
    return network_state, env_state, rollout


def truncation_of(info: Any, done: jax.Array) -> jax.Array:
    """Reads where episodes were cut: ``truncated``, or ``truncation`` as Brax calls it."""
    if isinstance(info, Mapping):
        for name in ("truncated", "truncation"):
            if name in info:
                return jp.asarray(info[name]).astype(bool)
    return jp.zeros_like(done)


def _check_values_fit_rewards(rollout: Transition) -> None:
    """Refuses a critic whose values would silently broadcast against the rewards."""

    def check(path: Any, value: jax.Array, reward: jax.Array) -> None:
        if value.shape != reward.shape:
            # Raised and not asserted: `python -O` must not remove it.
            raise AssertionError(
                f"value_estimates{jax.tree_util.keystr(path)} has shape {value.shape} per rollout "
                f"but the environment's reward has {reward.shape}; the critic must return one "
                f"value per environment and reward, shape (batch,) in each step"
            )

    jax.tree_util.tree_map_with_path(check, rollout.network_output.value_estimates, rollout.rewards)
