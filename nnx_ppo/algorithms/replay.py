"""Running a network again over a recorded rollout, with gradients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jp
from flax import nnx

from nnx_ppo.algorithms.trees import has_leading_axis, tree_where
from nnx_ppo.networks.types import ModuleState, StatefulModule


class Replay(NamedTuple):
    """What a network makes of a rollout now."""

    output: Any
    """The network's output, leaves ``[time, batch, ...]``."""
    regularization: jax.Array
    """Its regularization loss averaged over all steps, a scalar."""
    network_state: ModuleState
    """Its carry after the last step."""
    next_output: Any
    """Output for the observation after each step, with the carry before any reset, or None."""


def replay_rollout(
    networks: StatefulModule,
    network_state: ModuleState,
    obs: Any,
    rollout_extras: Any,
    done: jax.Array,
    next_obs: Any = None,
) -> Replay:
    """Repeats a rollout with the network's present weights.

    A network without carry treats all steps as one batch; others step through time and are reset
    where an episode ended. The network's Variables are updated in place.

    Args:
        networks: The network.
        network_state: Its carry at the start of the rollout, leaves ``[batch, ...]``.
        obs: Observations, leaves ``[time, batch, ...]``.
        rollout_extras: What the network emitted during the rollout, leaves likewise.
        done: Where episodes ended, bool ``[time, batch]``.
        next_obs: Observations after each step, if ``next_output`` is wanted.
    """
    if not jax.tree.leaves(network_state):
        replay = _replay_as_one_batch(
            networks, network_state, obs, rollout_extras, done.shape, next_obs
        )
        if replay is not None:
            return replay
    return _replay_step_by_step(networks, network_state, obs, rollout_extras, done, next_obs)


def _replay_as_one_batch(
    networks: StatefulModule,
    network_state: ModuleState,
    obs: Any,
    rollout_extras: Any,
    shape: tuple[int, ...],
    next_obs: Any,
) -> Replay | None:
    """Calls the network once; None if its regularization loss does not tell steps apart.

    Such a scalar may be a sum over the batch, which would grow with the number of steps.
    """
    n_steps = shape[0] * shape[1]

    def flatten(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jp.reshape(leaf, (n_steps, *leaf.shape[2:])), tree)

    def unflatten(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jp.reshape(leaf, (*shape, *leaf.shape[1:])), tree)

    # On a copy, so that giving up leaves no draw from the network's random streams behind.
    attempt = nnx.clone(networks)
    out = attempt(network_state, flatten(obs), flatten(rollout_extras))
    if not has_leading_axis(out.regularization_loss, n_steps):
        return None
    next_output = None
    if next_obs is not None:
        next_output = unflatten(attempt(network_state, flatten(next_obs), None).output)
    nnx.update(networks, nnx.state(attempt))
    return Replay(
        unflatten(out.output), jp.mean(out.regularization_loss), network_state, next_output
    )


def _replay_step_by_step(
    networks: StatefulModule,
    network_state: ModuleState,
    obs: Any,
    rollout_extras: Any,
    done: jax.Array,
    next_obs: Any,
) -> Replay:
    # Weights stay outside the loop's carry, or the backward pass would keep a copy per step.
    graphdef, params, variables = nnx.split(networks, nnx.Param, ...)

    def step(carry: Any, recorded: Any) -> Any:
        variables, network_state = carry
        obs, extras, done, next_obs = recorded
        networks = nnx.merge(graphdef, params, variables, copy=True)
        out = networks(network_state, obs, extras)
        next_output = None
        if next_obs is not None:
            next_output = networks(out.next_state, next_obs, None).output
        network_state = tree_where(done, networks.reset_state(out.next_state), out.next_state)
        _, _, variables = nnx.split(networks, nnx.Param, ...)
        regularization = jp.mean(jp.asarray(out.regularization_loss))
        return (variables, network_state), (out.output, regularization, next_output)

    (variables, network_state), (output, regularization, next_output) = jax.lax.scan(
        step, (variables, network_state), (obs, rollout_extras, done, next_obs)
    )
    nnx.update(networks, variables)
    return Replay(output, jp.mean(regularization), network_state, next_output)
