"""PPO as one writes it down at first, for `training_throughput.py` to compare with.

The same algorithm on the same network modules: a rollout, then updates that replay it through
time. Every environment is reset in every step and `where` picks those that ended, the loss scans
over time whatever the network is, and the host reads the step counter after each iteration.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

N_EPOCHS = 4
N_MINIBATCHES = 4
CLIP_RANGE = 0.2
GAMMA = 0.99
LAMBDA = 0.95
LEARNING_RATE = 1e-4


class PlainPPO:
    """Trains a network of ours without any of our training code."""

    def __init__(self, environment: Any, network: Any, n_envs: int, rollout_length: int):
        self.n_envs, self.rollout_length = n_envs, rollout_length
        optimizer = nnx.Optimizer(network, optax.adam(LEARNING_RATE), wrt=nnx.Param)
        keys = jax.random.split(jax.random.key(0), n_envs)
        states = (network.initialize_state(n_envs), jax.vmap(environment.reset)(keys))
        self.state = (network, optimizer, *states, jax.random.key(1), jnp.zeros(()))
        self.iterate = nnx.jit(lambda *state: _iterate(environment, n_envs, rollout_length, *state))
        self.steps = 0

    def run(self, iterations: int) -> int:
        """Trains and returns how many environment steps that took."""
        before = self.steps
        for _ in range(iterations):
            network, optimizer, *rest = self.state
            self.state = (network, optimizer, *self.iterate(network, optimizer, *rest))
            self.steps = int(self.state[-1])
        return self.steps - before


def _iterate(
    environment: Any,
    n_envs: int,
    rollout_length: int,
    network: Any,
    optimizer: nnx.Optimizer,
    carry: Any,
    env_state: Any,
    key: jax.Array,
    steps: jax.Array,
) -> tuple[Any, ...]:
    reset_key, shuffle_key, key = jax.random.split(key, 3)
    start = carry
    graphdef, variables = nnx.split(network)

    def act(state: Any, keys: jax.Array) -> Any:
        variables, carry, env_state = state
        network = nnx.merge(graphdef, variables, copy=True)
        out = network(carry, env_state.obs, None)
        after = jax.vmap(environment.step)(env_state, out.output.actions)
        done = after.done.astype(bool)
        seen = {
            "obs": env_state.obs,
            "extras": out.rollout_extras,
            "log_likelihood": out.output.loglikelihoods,
            "reward": after.reward,
            "done": done,
            "truncated": after.info["truncated"],
            "next_obs": after.obs,
        }
        env_state = _where(done, jax.vmap(environment.reset)(keys), after)
        carry = _where(done, network.reset_state(out.next_state), out.next_state)
        return (nnx.state(network), carry, env_state), seen

    keys = jax.random.split(reset_key, (rollout_length, n_envs))
    (variables, carry, env_state), rollout = jax.lax.scan(act, (variables, carry, env_state), keys)
    nnx.update(network, variables)

    graphdef, variables = nnx.split((network, optimizer))

    def update(variables: Any, chosen: jax.Array) -> Any:
        network, optimizer = nnx.merge(graphdef, variables, copy=True)
        minibatch = jax.tree.map(lambda leaf: leaf[:, chosen], rollout)
        carries = jax.tree.map(lambda leaf: leaf[chosen], start)
        gradients = nnx.grad(_loss)(network, carries, minibatch)
        optimizer.update(network, gradients)
        return nnx.state((network, optimizer)), None

    order = [
        jax.random.permutation(jax.random.fold_in(shuffle_key, epoch), n_envs)
        for epoch in range(N_EPOCHS)
    ]
    minibatches = jnp.stack(order).reshape(N_EPOCHS * N_MINIBATCHES, -1)
    variables, _ = jax.lax.scan(update, variables, minibatches)
    nnx.update((network, optimizer), variables)
    network.update_statistics(rollout["extras"])
    return carry, env_state, key, steps + n_envs * rollout_length


def _loss(network: Any, carry: Any, rollout: Any) -> jax.Array:
    graphdef, variables = nnx.split(network)

    def replay(state: Any, seen: Any) -> Any:
        variables, carry = state
        network = nnx.merge(graphdef, variables, copy=True)
        out = network(carry, seen["obs"], seen["extras"])
        carry = _where(seen["done"], network.reset_state(out.next_state), out.next_state)
        penalty = jnp.mean(out.regularization_loss)
        return (nnx.state(network), carry), (out.output, penalty)

    (variables, carry), (output, penalty) = jax.lax.scan(replay, (variables, carry), rollout)
    last = nnx.merge(graphdef, variables, copy=True)(carry, rollout["next_obs"][-1], None)
    values = output.value_estimates
    following = jnp.concatenate([values[1:], last.output.value_estimates[None]])
    following = jnp.where(rollout["done"], 0.0, following)
    surprise = rollout["reward"] + GAMMA * following - values
    surprise = jnp.where(rollout["truncated"], 0.0, surprise)

    def accumulate(later: jax.Array, step: Any) -> Any:
        surprise, done = step
        total = surprise + GAMMA * LAMBDA * jnp.where(done, 0.0, later)
        return total, total

    nothing = jnp.zeros_like(surprise[0])
    _, advantages = jax.lax.scan(accumulate, nothing, (surprise, rollout["done"]), reverse=True)
    advantages = jax.lax.stop_gradient(advantages)
    targets = jax.lax.stop_gradient(values + advantages)
    advantages = (advantages - jnp.mean(advantages)) / (jnp.std(advantages) + 1e-8)
    ratio = jnp.exp(output.loglikelihoods - rollout["log_likelihood"])
    clipped = jnp.clip(ratio, 1.0 - CLIP_RANGE, 1.0 + CLIP_RANGE)
    actor = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
    return actor + 0.5 * jnp.mean(jnp.square(values - targets)) + jnp.mean(penalty)


def _where(done: jax.Array, ended: Any, going_on: Any) -> Any:
    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(done.reshape(done.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, ended, going_on)
