"""One iteration of PPO: a rollout and the updates learnt from it."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jp
from flax import nnx
from jax.typing import ArrayLike

from nnx_ppo.algorithms.metrics import compute_metrics, log_weight_stats
from nnx_ppo.algorithms.optimizers import make_gradient_transformation
from nnx_ppo.algorithms.ppo_loss import ppo_loss
from nnx_ppo.algorithms.rollout import unroll_env
from nnx_ppo.algorithms.sharding import shard_environments
from nnx_ppo.algorithms.trees import strong_types
from nnx_ppo.algorithms.types import LoggingLevel, RLEnv, TrainingState
from nnx_ppo.networks.types import StatefulModule


def new_training_state(
    env: RLEnv,
    networks: StatefulModule,
    n_envs: int,
    seed: ArrayLike,
    learning_rate: float | int = 1e-4,
    gradient_clipping: float | int | None = None,
    weight_decay: float | int | bool | None = None,
) -> TrainingState:
    """Creates environments, carry and optimizer for a network.

    Args:
        env: The environment of a single robot.
        networks: The network to train; training updates this very object.
        n_envs: Environments stepped in parallel.
        seed: Seed of the environments and of everything training draws itself.
        learning_rate: Step size of Adam.
        gradient_clipping: Largest global norm of a gradient, or None.
        weight_decay: None for Adam, True for AdamW with its default decay, or AdamW's decay.
    """
    key, training_key = jax.random.split(jax.random.key(seed))
    optimizer = make_gradient_transformation(learning_rate, gradient_clipping, weight_decay)
    return TrainingState(
        networks=networks,
        network_states=strong_types(networks.initialize_state(n_envs)),
        env_states=strong_types(jax.vmap(env.reset)(jax.random.split(key, n_envs))),
        optimizer=nnx.Optimizer(networks, optimizer, wrt=nnx.Param),
        rng_key=training_key,
        steps_taken=jp.zeros((), jp.uint32),
    )


def ppo_step(
    env: RLEnv,
    training_state: TrainingState,
    n_envs: int,
    rollout_length: int,
    gae_lambda: ArrayLike,
    discounting_factor: ArrayLike,
    clip_range: ArrayLike,
    normalize_advantages: bool,
    combine_advantages: bool,
    n_epochs: int,
    n_minibatches: int,
    critic_loss_weight: ArrayLike = 1.0,
    logging_level: LoggingLevel = LoggingLevel.LOSSES,
    logging_percentiles: Sequence[int | float] | None = None,
    bootstrap_truncated: bool = False,
) -> tuple[TrainingState, dict[str, Any]]:
    """Collects a rollout, updates the network on it, and reports.

    Meant to run under ``nnx.jit`` with everything but the training state and the five numbers
    (``gae_lambda`` to ``clip_range``, ``critic_loss_weight``) static.

    Args:
        env: The environment of a single robot.
        training_state: Where training stands. Network and optimizer are updated in place.
        n_envs: Environments in the state.
        rollout_length: Steps per environment.
        gae_lambda: Decay of generalized advantage estimation.
        discounting_factor: Discount of future rewards per step.
        clip_range: Largest relative change of an action's probability that is rewarded.
        normalize_advantages: Whether advantages are standardized in each minibatch.
        combine_advantages: Whether all action heads share the sum of all rewards' advantages.
        n_epochs: Passes over the rollout.
        n_minibatches: Updates per pass, each on other environments and all their steps.
        critic_loss_weight: Weight of the critic's loss.
        logging_level: What to measure.
        logging_percentiles: Percentiles to report, or None for mean and standard deviation.
        bootstrap_truncated: Whether truncated episodes are continued by the critic's value.

    Returns:
        The state for the next iteration, and scalars by name.

    Raises:
        TypeError: ``n_minibatches`` does not divide ``n_envs``.
        AssertionError: the critic's values and the environment's rewards differ in shape.
    """
    networks, optimizer = training_state.networks, training_state.optimizer
    reset_key, shuffle_key, new_key = jax.random.split(training_state.rng_key, 3)
    network_states, env_states, rollout = unroll_env(
        env,
        training_state.env_states,
        networks,
        training_state.network_states,
        rollout_length,
        reset_key,
    )

    # What the updates never read is not gathered for them.
    next_obs = rollout.next_obs
    if not bootstrap_truncated:
        next_obs = jax.tree.map(lambda leaf: leaf[-1:], next_obs)
    learning_data = rollout.replace(metrics={}, next_obs=next_obs)

    def update(networks: StatefulModule, optimizer: nnx.Optimizer, envs: jax.Array) -> Any:
        minibatch = jax.tree.map(lambda leaf: leaf[:, envs], learning_data)
        minibatch = shard_environments(minibatch, envs.shape[0], axis=1)
        states = jax.tree.map(lambda leaf: leaf[envs], training_state.network_states)
        states = shard_environments(states, envs.shape[0])
        gradients, metrics = nnx.grad(ppo_loss, has_aux=True)(
            networks,
            states,
            minibatch,
            clip_range,
            normalize_advantages,
            combine_advantages,
            discounting_factor,
            gae_lambda,
            critic_loss_weight,
            logging_level,
            bootstrap_truncated,
        )
        if LoggingLevel.GRAD_NORM in logging_level:
            metrics["grad_norm"] = global_norm(gradients)
        optimizer.update(networks, gradients)
        return metrics

    minibatches = shuffled_minibatches(shuffle_key, n_envs, n_epochs, n_minibatches)
    loss_metrics = scan_updates(update, networks, optimizer, minibatches)

    metrics = compute_metrics(loss_metrics, rollout, logging_level, logging_percentiles)
    networks.update_statistics(rollout.rollout_extras)
    steps_taken = add_steps(training_state.steps_taken, rollout_length * n_envs)
    metrics["total_steps"] = steps_taken
    if LoggingLevel.WEIGHTS in logging_level:
        log_weight_stats(metrics, networks, logging_percentiles)
    new_state = training_state.replace(
        network_states=network_states,
        env_states=env_states,
        rng_key=new_key,
        steps_taken=steps_taken,
    )
    return new_state, metrics


def add_steps(steps_taken: ArrayLike, n_steps: int) -> jax.Array:
    """Counts on, in the type that the count has."""
    steps_taken = jp.asarray(steps_taken)
    return steps_taken + jp.asarray(n_steps, steps_taken.dtype)


def global_norm(gradients: Any) -> jax.Array:
    """Returns the L2 norm over all leaves together."""
    squares = [jp.sum(jp.square(leaf)) for leaf in jax.tree.leaves(gradients)]
    return jp.sqrt(jp.sum(jp.stack(squares))) if squares else jp.zeros(())


def shuffled_minibatches(
    key: jax.Array, n_envs: int, n_epochs: int, n_minibatches: int
) -> jax.Array:
    """Deals the environments out anew for each epoch.

    Returns:
        Indices of environments, int ``[n_epochs * n_minibatches, n_envs // n_minibatches]``.

    Raises:
        TypeError: ``n_minibatches`` does not divide ``n_envs``.
    """
    if n_envs % n_minibatches:
        raise TypeError(
            f"n_envs={n_envs} environments cannot be split into n_minibatches={n_minibatches} "
            f"minibatches of equal size; choose n_envs as a multiple of n_minibatches"
        )
    keys = jax.random.split(key, n_epochs)
    permutations = jax.vmap(lambda k: jax.random.permutation(k, n_envs))(keys)
    return permutations.reshape(n_epochs * n_minibatches, n_envs // n_minibatches)


def scan_updates(
    update: Any, networks: StatefulModule, optimizer: nnx.Optimizer, minibatches: jax.Array
) -> Any:
    """Runs ``update(networks, optimizer, envs)`` on each minibatch, one after the other.

    Compiled once however many updates there are; the two modules are updated in place.

    Returns:
        What the updates returned, stacked.
    """
    graphdef, variables = nnx.split((networks, optimizer))

    def step(variables: Any, envs: jax.Array) -> Any:
        networks, optimizer = nnx.merge(graphdef, variables, copy=True)
        metrics = update(networks, optimizer, envs)
        return nnx.state((networks, optimizer)), metrics

    variables, metrics = jax.lax.scan(step, variables, minibatches)
    nnx.update((networks, optimizer), variables)
    return metrics
