"""A single episode after another in one environment, recorded for rendering."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jp
from flax import nnx
from jaxtyping import Key

from nnx_ppo.algorithms.random_streams import with_streams_from
from nnx_ppo.algorithms.trees import promote_tree, tree_sum
from nnx_ppo.algorithms.types import RLEnv
from nnx_ppo.networks.types import StatefulModule


class SlimData(NamedTuple):
    """The part of a MuJoCo simulation that rendering needs; None for what it does not have."""

    qpos: Any
    qvel: Any
    time: Any
    mocap_pos: Any
    mocap_quat: Any
    xfrc_applied: Any


class SlimState(NamedTuple):
    """The part of an environment's state that rendering needs."""

    data: Any
    """``SlimData`` of a MuJoCo environment, otherwise the whole state."""
    done: Any
    info: Any
    metrics: Any


class RenderRollout(NamedTuple):
    """What is known of a rollout made for rendering."""

    stacked: SlimState
    """States before each step; where an episode ended, that of the next one's reset."""
    final: SlimState
    """State after the last step."""
    episode_reward: jax.Array
    """Sum of rewards until the first episode ended."""
    episode_length: jax.Array
    """Steps until the first episode ended."""


def eval_rollout_for_render_scan(
    env: RLEnv, networks: StatefulModule, max_episode_length: int, key: Key[jax.Array, ""]
) -> tuple[SlimState, SlimState, jax.Array]:
    """Steps one environment, starting a new episode whenever one ends.

    The network acts in the mode it is in and draws from streams derived from ``key``; nothing
    about the given network changes.

    Args:
        env: The environment of a single robot.
        networks: The acting network, called with a batch of one.
        max_episode_length: Number of steps.
        key: PRNG key of episodes and actions.

    Returns:
        The states before each step, leaves ``[max_episode_length, ...]``, the state after the last
        step, and the sum of rewards until the first episode ended.
    """
    rollout = rollout_for_render(env, networks, max_episode_length, key)
    return rollout.stacked, rollout.final, rollout.episode_reward


def rollout_for_render(
    env: RLEnv, networks: StatefulModule, max_episode_length: int, key: Key[jax.Array, ""]
) -> RenderRollout:
    """Like ``eval_rollout_for_render_scan``, and also counts the first episode's steps."""
    networks = with_streams_from(networks, key)
    graphdef, variables = nnx.split(networks)
    return _render_scan(env, max_episode_length, graphdef, variables, key)


def unstack_trajectory(stacked: SlimState, final: SlimState, n: int) -> list[SlimState]:
    """Returns the ``n`` stacked states and the final one as a list, on the host."""
    stacked, final = jax.device_get((stacked, final))
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(n)] + [final]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _render_scan(
    env: RLEnv, max_episode_length: int, graphdef: Any, variables: Any, key: Key[jax.Array, ""]
) -> RenderRollout:
    first_key, reset_key = jax.random.split(key)
    networks = nnx.merge(graphdef, variables, copy=True)
    network_state = networks.initialize_state(1)
    env_state = env.reset(first_key)
    variables = nnx.state(networks)

    def transition(variables: Any, network_state: Any, env_state: Any, key: Any) -> Any:
        networks = nnx.merge(graphdef, variables, copy=True)
        obs = jax.tree.map(lambda leaf: jp.asarray(leaf)[None], env_state.obs)
        out = networks(network_state, obs, None)
        action = jax.tree.map(lambda leaf: leaf[0], out.output.actions)
        stepped = _arrays(env.step(env_state, action))
        done = jp.asarray(stepped.done).astype(bool)
        stepped = promote_tree(stepped, jax.eval_shape(env.reset, key))
        # Network and environment start over together; testing the state after the environment's
        # reset would never reset the network.
        next_env_state = jax.lax.cond(
            done, lambda: promote_tree(_arrays(env.reset(key)), stepped), lambda: stepped
        )
        next_network_state = jax.tree.map(
            lambda reset, kept: jp.where(done, reset, kept),
            networks.reset_state(out.next_state),
            out.next_state,
        )
        reward = tree_sum(stepped.reward).astype(jp.float32)
        return (nnx.state(networks), next_network_state, next_env_state), (done, reward)

    (_, _, next_env_state), _ = jax.eval_shape(
        transition, variables, network_state, env_state, reset_key
    )
    env_state = promote_tree(_arrays(env_state), next_env_state)

    def step(carry: Any, key: Any) -> Any:
        states, finished, total_reward, length = carry
        variables, network_state, env_state = states
        states, (done, reward) = transition(variables, network_state, env_state, key)
        total_reward = total_reward + jp.where(finished, jp.float32(0.0), reward)
        length = length + (~finished).astype(jp.int32)
        return (states, finished | done, total_reward, length), _slim(env_state)

    states = (variables, network_state, env_state)
    start = (states, jp.array(False), jp.float32(0.0), jp.int32(0))
    keys = jax.random.split(reset_key, max_episode_length)
    (states, _, total_reward, length), trajectory = jax.lax.scan(step, start, keys)
    return RenderRollout(trajectory, _slim(states[-1]), total_reward, length)


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jp.asarray, tree)


def _slim(state: Any) -> SlimState:
    data = getattr(state, "data", None)
    if hasattr(data, "qpos"):
        data = SlimData(*(getattr(data, name, None) for name in SlimData._fields))
    else:
        data = state
    return SlimState(data=data, done=state.done, info=state.info, metrics=state.metrics)
