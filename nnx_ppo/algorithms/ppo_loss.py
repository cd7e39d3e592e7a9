"""The clipped surrogate objective with a critic (J. Schulman et al., "PPO algorithms", 2017)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jp
from jax.typing import ArrayLike
from jaxtyping import Float

from nnx_ppo.algorithms.gae import gae
from nnx_ppo.algorithms.replay import Replay, replay_rollout
from nnx_ppo.algorithms.trees import tree_sum
from nnx_ppo.algorithms.types import LoggingLevel, Transition
from nnx_ppo.networks.types import ModuleState, StatefulModule

EPSILON = 1e-8


def ppo_loss(
    networks: StatefulModule,
    network_state: ModuleState,
    rollout_data: Transition,
    clip_range: ArrayLike,
    normalize_advantages: bool,
    combine_advantages: bool,
    discounting_factor: ArrayLike,
    gae_lambda: ArrayLike,
    critic_loss_weight: ArrayLike,
    logging_level: LoggingLevel,
    bootstrap_truncated: bool = False,
) -> tuple[Float[jax.Array, ""], dict[str, Any]]:
    """Computes the loss of one minibatch.

    Args:
        networks: The network in training.
        network_state: Its carry at the start of the rollout, leaves ``[batch, ...]``.
        rollout_data: The rollout, leaves ``[time, batch, ...]``.
        clip_range: Largest relative change of an action's probability that is rewarded.
        normalize_advantages: Whether advantages are standardized, separately for each reward.
        combine_advantages: Whether the advantages of all rewards are added, for every head.
        discounting_factor: Discount of future rewards per step.
        gae_lambda: Decay of generalized advantage estimation.
        critic_loss_weight: Weight of the critic's loss.
        logging_level: LOSSES, ACTOR_EXTRA and CRITIC_EXTRA choose what is reported.
        bootstrap_truncated: Whether a truncated episode is continued by the critic's value of its
            last observation; otherwise the truncated step gets no advantage.

    Returns:
        The loss, and what was measured under ``losses/...``, per reward or action head where
        there are several.

    Raises:
        ValueError: rewards, values and log-likelihoods differ in structure.
    """
    rollout = jax.tree.map(jax.lax.stop_gradient, rollout_data)
    replay = replay_rollout(
        networks,
        network_state,
        rollout.obs,
        rollout.rollout_extras,
        rollout.done,
        rollout.next_obs if bootstrap_truncated else None,
    )
    last_obs = jax.tree.map(lambda leaf: leaf[-1], rollout.next_obs)
    last_values = networks(replay.network_state, last_obs, None).output.value_estimates
    values = replay.output.value_estimates
    rewards, truncated = rollout.rewards, rollout.truncated
    if bootstrap_truncated:
        rewards = _with_value_of_the_rest(rewards, replay, truncated, discounting_factor)
        truncated = jp.zeros_like(truncated)

    def advantages_of(reward: jax.Array, value: jax.Array, last_value: jax.Array) -> jax.Array:
        value, last_value = jax.lax.stop_gradient((value, last_value))
        return gae(
            rewards=reward,
            values_excl_last=value,
            last_value=last_value,
            done=rollout.done,
            truncation=truncated,
            lambda_=gae_lambda,
            gamma=discounting_factor,
        )

    advantages = jax.tree.map(advantages_of, rewards, values, last_values)
    targets = jax.tree.map(lambda v, a: jax.lax.stop_gradient(v + a), values, advantages)

    loglikelihoods = replay.output.loglikelihoods
    advantages = _advantages_per_head(advantages, loglikelihoods, combine_advantages)
    if normalize_advantages:
        advantages = jax.tree.map(lambda a: (a - jp.mean(a)) / (jp.std(a) + EPSILON), advantages)
    ratios = jax.tree.map(
        lambda new, old: jp.exp(new - old), loglikelihoods, rollout.network_output.loglikelihoods
    )

    def actor_loss(ratio: jax.Array, advantage: jax.Array) -> jax.Array:
        clipped = jp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
        return -jp.mean(jp.minimum(ratio * advantage, clipped * advantage))

    actor = jax.tree.map(actor_loss, ratios, advantages)
    critic = jax.tree.map(lambda v, t: 0.5 * jp.mean(jp.square(v - t)), values, targets)
    total = tree_sum(actor) + critic_loss_weight * tree_sum(critic) + replay.regularization

    metrics: dict[str, Any] = {}
    if LoggingLevel.LOSSES in logging_level:
        metrics["losses/actor"] = actor
        metrics["losses/critic"] = critic
        metrics["losses/regularization"] = replay.regularization
    if LoggingLevel.ACTOR_EXTRA in logging_level:
        metrics["losses/clipping_fraction"] = jax.tree.map(
            lambda ratio: jp.mean((jp.abs(ratio - 1.0) > clip_range).astype(jp.float32)), ratios
        )
    if LoggingLevel.CRITIC_EXTRA in logging_level:
        metrics["losses/advantages"] = advantages
        metrics["losses/critic_R^2"] = jax.tree.map(
            lambda loss, target: 1.0 - 2.0 * loss / (jp.var(target) + EPSILON), critic, targets
        )
    return total, metrics


def _advantages_per_head(advantages: Any, loglikelihoods: Any, combine: bool) -> Any:
    """Arranges the advantages of rewards like the action heads they train."""
    if combine:
        combined = tree_sum(advantages)
        return jax.tree.map(lambda _: combined, loglikelihoods)
    reward_structure = jax.tree.structure(advantages)
    head_structure = jax.tree.structure(loglikelihoods)
    if reward_structure != head_structure:
        raise ValueError(
            f"the environment's rewards have the structure {_describe(advantages)} but the "
            f"network's action heads {_describe(loglikelihoods)}: give each head its own reward, "
            f"or set combine_advantages=True so that all heads share the sum of all advantages"
        )
    return advantages


def _describe(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return f"dict with keys {list(tree)}"
    return str(jax.tree.structure(tree)).removeprefix("PyTreeDef")


def _with_value_of_the_rest(
    rewards: Any, replay: Replay, truncated: jax.Array, discounting_factor: ArrayLike
) -> Any:
    """Adds to the reward of a truncated step what the critic expects to follow it."""

    def add(reward: jax.Array, next_value: jax.Array) -> jax.Array:
        rest = jax.lax.stop_gradient(discounting_factor * next_value)
        return reward + jp.where(truncated, rest, jp.zeros_like(rest))

    return jax.tree.map(add, rewards, replay.next_output.value_estimates)
