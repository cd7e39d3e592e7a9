"""Starting new episodes in those environments of a batch whose episode has ended."""

import functools
from typing import Any

import jax
import jax.numpy as jp
from jaxtyping import Bool, Key

from nnx_ppo.algorithms.sharding import on_each_device
from nnx_ppo.algorithms.trees import has_leading_axis, promote_tree, tree_where
from nnx_ppo.algorithms.types import RLEnv

# Environments reset together. Large enough that steps with a usual number of ended episodes need
# one round, small enough that resetting is cheap beside stepping the whole batch.
MIN_RESETS_PER_ROUND = 8
BATCH_FRACTION_PER_ROUND = 16


def reset_finished(
    env: RLEnv,
    env_states: Any,
    done: Bool[jax.Array, " batch"],
    keys: Key[jax.Array, " batch"],
) -> Any:
    """Replaces the states of finished environments by those of new episodes.

    The result is that of ``tree_where(done, jax.vmap(env.reset)(keys), env_states)``. A reset can
    cost as much as a step and few environments need one, so only those are reset, a small group
    at a time.

    Args:
        env: The environment of a single robot.
        env_states: States after a step, leaves ``[batch, ...]``.
        done: Which episodes have ended.
        keys: One PRNG key per environment.

    Returns:
        The states to continue from. Leaves have the type in which both a reset and a step fit.
    """
    batch_size = done.shape[0]
    leaves = jax.tree.leaves(env_states)
    if not all(has_leading_axis(leaf, batch_size) for leaf in leaves):
        # Fields shared between environments come from a reset of the whole batch.
        return tree_where(done, jax.vmap(env.reset)(keys), env_states)
    # On several devices each one resets its own, as often as it has to and without the others.
    reset = on_each_device(functools.partial(_reset_in_groups, env), batch_size)
    return reset(env_states, done, keys)


def _reset_in_groups(
    env: RLEnv,
    env_states: Any,
    done: Bool[jax.Array, " batch"],
    keys: Key[jax.Array, " batch"],
) -> Any:
    batch_size = done.shape[0]
    group_size = min(batch_size, max(MIN_RESETS_PER_ROUND, batch_size // BATCH_FRACTION_PER_ROUND))
    # Jitted so that its trace, which for a physics engine takes seconds, serves both uses below.
    reset_group = jax.jit(jax.vmap(env.reset))
    env_states = promote_tree(env_states, jax.eval_shape(reset_group, keys[:group_size]))

    def reset_some(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        pending, states = carry
        # Where fewer are pending than fit in a group, the rest of it points behind the last
        # environment and is dropped.
        (group,) = jp.nonzero(pending, size=group_size, fill_value=batch_size)
        fresh = reset_group(keys.at[group].get(mode="clip"))
        states = jax.tree.map(
            lambda leaf, new: leaf.at[group].set(new.astype(leaf.dtype), mode="drop"),
            states,
            fresh,
        )
        return pending.at[group].set(False, mode="drop"), states

    _, env_states = jax.lax.while_loop(
        lambda carry: jp.any(carry[0]), reset_some, (done, env_states)
    )
    return env_states
