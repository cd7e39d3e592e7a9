"""Episodes run to measure a policy."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx
from jaxtyping import Bool, Key

from nnx_ppo.algorithms.metrics import log_metric
from nnx_ppo.algorithms.random_streams import with_streams_from
from nnx_ppo.algorithms.trees import has_leading_axis, promote_tree, tree_sum
from nnx_ppo.algorithms.types import LoggingLevel, RLEnv
from nnx_ppo.jax_dataclass import JaxDataclass
from nnx_ppo.networks.types import StatefulModule


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class _Progress(JaxDataclass):
    """Where the episodes of one evaluation stand."""

    step: jax.Array
    variables: Any
    network_state: Any
    env_state: Any
    finished: jax.Array
    rewards: Any
    lifespan: jax.Array
    metrics: Any


def eval_rollout(
    env: RLEnv,
    networks: StatefulModule,
    n_envs: int,
    max_episode_length: int,
    key: Key[jax.Array, ""],
    logging_percentiles: Sequence[int | float] | None = None,
    logging_level: LoggingLevel = LoggingLevel.NONE,
) -> dict[str, jax.Array]:
    """Runs one episode per environment and summarizes them.

    The network acts in the mode it is in: call ``eval()`` on it first for deterministic actions.
    It draws from streams derived from ``key``; nothing about the given network changes.

    Args:
        env: The environment of a single robot.
        networks: The network to evaluate.
        n_envs: Number of episodes.
        max_episode_length: Steps after which an episode is cut.
        key: PRNG key of episodes and actions.
        logging_percentiles: Percentiles over episodes to report, or None for mean and standard
            deviation.
        logging_level: NETWORK_METRICS and ENV_METRICS add averages over each episode of what the
            network and the environment report.

    Returns:
        Scalars: ``eval/episode_reward/mean`` and ``/std`` always, further statistics of the sum of
        all rewards and of each one under ``eval/episode_reward``, of the number of steps including
        the last under ``eval/lifespan``, and ``eval/net/...``, ``eval/env/...`` if asked for.
    """
    networks = with_streams_from(networks, key)
    graphdef, variables = nnx.split(networks)
    percentiles = tuple(logging_percentiles) if logging_percentiles else None
    return _evaluate(
        env, n_envs, max_episode_length, percentiles, logging_level, graphdef, variables, key
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _evaluate(
    env: RLEnv,
    n_envs: int,
    max_episode_length: int,
    percentiles: tuple[int | float, ...] | None,
    logging_level: LoggingLevel,
    graphdef: Any,
    variables: Any,
    key: Key[jax.Array, ""],
) -> dict[str, jax.Array]:
    networks = nnx.merge(graphdef, variables, copy=True)
    network_state = networks.initialize_state(n_envs)
    env_state = jax.vmap(env.reset)(jax.random.split(key, n_envs))
    variables = nnx.state(networks)

    def transition(variables: Any, network_state: Any, env_state: Any) -> Any:
        networks = nnx.merge(graphdef, variables, copy=True)
        out = networks(network_state, env_state.obs, None)
        next_env_state = jax.vmap(env.step)(env_state, out.output.actions)
        metrics = {}
        if LoggingLevel.NETWORK_METRICS in logging_level:
            metrics["net"] = out.metrics
        if LoggingLevel.ENV_METRICS in logging_level:
            metrics["env"] = next_env_state.metrics
        return nnx.state(networks), out.next_state, next_env_state, metrics

    # A trace without computation: which metrics there are, and in which types states settle.
    _, _, next_env_state, metrics = jax.eval_shape(transition, variables, network_state, env_state)
    env_state = promote_tree(env_state, next_env_state)
    stepped_from = env_state

    def unfinished(progress: _Progress) -> Bool[jax.Array, ""]:
        return (progress.step < max_episode_length) & ~jp.all(progress.finished)

    def step(progress: _Progress) -> _Progress:
        variables, network_state, env_state, metrics = transition(
            progress.variables, progress.network_state, progress.env_state
        )
        running = ~progress.finished
        return _Progress(
            step=progress.step + 1,
            variables=variables,
            network_state=network_state,
            env_state=promote_tree(env_state, stepped_from),
            finished=progress.finished | jp.asarray(env_state.done).astype(bool),
            rewards=_accumulate(progress.rewards, env_state.reward, running),
            lifespan=progress.lifespan + running.astype(jp.int32),
            metrics=_accumulate(progress.metrics, metrics, running),
        )

    progress = jax.lax.while_loop(
        unfinished,
        step,
        _Progress(
            step=jp.zeros((), jp.int32),
            variables=variables,
            network_state=network_state,
            env_state=env_state,
            finished=jp.zeros(n_envs, bool),
            rewards=jax.tree.map(_zero_sum, env_state.reward),
            lifespan=jp.zeros(n_envs, jp.int32),
            metrics=jax.tree.map(_zero_sum, metrics),
        ),
    )
    return _summarize(progress, percentiles)


def _zero_sum(leaf: Any) -> jax.Array:
    return jp.zeros(leaf.shape, jp.float32)


def _accumulate(sums: Any, terms: Any, running: Bool[jax.Array, " batch"]) -> Any:
    """Adds terms where the episode still runs; terms without a batch axis while any does."""

    def add(total: jax.Array, term: Any) -> jax.Array:
        mask = jp.any(running)
        if has_leading_axis(term, running.shape[0]):
            mask = jp.reshape(running, (-1,) + (1,) * (term.ndim - 1))
        # Selected and not multiplied: an environment may well return NaN after its episode.
        return total + jp.where(mask, jp.asarray(term).astype(jp.float32), jp.float32(0.0))

    return jax.tree.map(add, sums, terms)


def _summarize(
    progress: _Progress, percentiles: tuple[int | float, ...] | None
) -> dict[str, jax.Array]:
    lifespan = progress.lifespan.astype(jp.float32)
    metrics: dict[str, jax.Array] = {}

    total_reward = tree_sum(progress.rewards)
    log_metric(metrics, "eval/episode_reward", total_reward)
    log_metric(metrics, "eval/episode_reward", total_reward, percentiles)
    if isinstance(progress.rewards, Mapping):
        log_metric(metrics, "eval/episode_reward", progress.rewards, percentiles)
    log_metric(metrics, "eval/lifespan", lifespan, percentiles)

    def average(total: jax.Array) -> jax.Array:
        steps = jp.maximum(progress.step, 1).astype(jp.float32)
        if has_leading_axis(total, lifespan.shape[0]):
            steps = jp.maximum(lifespan, 1.0).reshape((-1,) + (1,) * (total.ndim - 1))
        return total / steps

    log_metric(metrics, "eval", jax.tree.map(average, progress.metrics), percentiles)
    return metrics
