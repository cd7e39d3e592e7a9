"""Data that flows through training: environments, transitions, training states, logging levels."""

import dataclasses
import enum
from typing import Any, Protocol, runtime_checkable

import jax
from flax import nnx

from nnx_ppo.jax_dataclass import JaxDataclass
from nnx_ppo.networks.types import PPONetworkOutput

__all__ = [
    "DistillationState",
    "DistillationTransition",
    "EnvState",
    "LoggingLevel",
    "PPONetworkOutput",
    "RLEnv",
    "TrainingState",
    "Transition",
]


@runtime_checkable
class EnvState(Protocol):
    """What training reads of an environment's state.

    States are pytrees and also have ``replace(**fields)``, which returns a changed copy.
    """

    @property
    def obs(self) -> Any:
        """Observation, an array or a pytree of arrays."""
        ...

    @property
    def done(self) -> Any:
        """Whether the episode ended with this step, a bool or float scalar."""
        ...

    @property
    def reward(self) -> Any:
        """Reward of this step, a scalar or a dict of scalars."""
        ...

    @property
    def info(self) -> Any:
        """Anything else; ``info["truncated"]`` marks episodes that were cut and did not end."""
        ...

    @property
    def metrics(self) -> Any:
        """Quantities worth logging, a possibly nested dict."""
        ...


@runtime_checkable
class RLEnv(Protocol):
    """An environment of a single robot; training batches it with ``jax.vmap``.

    Environments are static arguments of compiled functions, so they must be hashable; the default
    hash, by identity, is the right one.
    """

    def reset(self, rng: Any) -> Any:
        """Returns the state of a new episode."""
        ...

    def step(self, state: Any, action: Any) -> Any:
        """Returns the state after one action."""
        ...


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class TrainingState(JaxDataclass):
    """Everything that one training iteration needs and changes."""

    networks: Any
    """The ``StatefulModule`` in training. Iterations update this very object."""
    network_states: Any
    """Its carry, leaves ``[n_envs, ...]``."""
    env_states: Any
    """Environment states, leaves ``[n_envs, ...]``."""
    optimizer: nnx.Optimizer
    """Optimizer of the network's ``nnx.Param`` variables, updated in place as well."""
    rng_key: Any
    """PRNG key from which the next iteration derives its own."""
    steps_taken: Any
    """Environment steps so far over all environments, a uint32 scalar: exact up to 2**32 - 1."""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Transition(JaxDataclass):
    """One step of a batch of environments, or a rollout of them with a leading time axis."""

    obs: Any
    """Observation the network acted on, leaves ``[*time, batch, ...]``."""
    network_output: PPONetworkOutput
    """What the network returned for it."""
    rewards: Any
    """Reward of the step, leaves ``[*time, batch]``."""
    done: Any
    """Whether the episode ended with this step, bool ``[*time, batch]``."""
    truncated: Any
    """Whether it ended only because of a time limit, bool ``[*time, batch]``."""
    next_obs: Any
    """Observation after the step and before the environment is reset."""
    metrics: Any
    """``{"env": ..., "net": ...}``: what environment and network report."""
    rollout_extras: Any = None
    """What the network wants back when the step is replayed."""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class DistillationTransition(JaxDataclass):
    """One step in which the student acts and the teacher is asked for its action."""

    obs: Any
    """Observation both networks saw, leaves ``[*time, batch, ...]``."""
    student_output: PPONetworkOutput
    """What the student returned for it."""
    rewards: Any
    """Reward of the step, leaves ``[*time, batch]``."""
    done: Any
    """Whether the episode ended with this step, bool ``[*time, batch]``."""
    truncated: Any
    """Whether it ended only because of a time limit, bool ``[*time, batch]``."""
    next_obs: Any
    """Observation after the step and before the environment is reset."""
    metrics: Any
    """``{"env": ..., "student": ...}``: what environment and student report."""
    student_rollout_extras: Any = None
    """What the student wants back when the step is replayed."""
    teacher_rollout_extras: Any = None
    """What the teacher emitted: in a sampler's place the action it would have taken."""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class DistillationState(JaxDataclass):
    """Everything that one iteration of distillation needs and changes."""

    student: Any
    """The network in training. Iterations update this very object."""
    student_states: Any
    """The student's carry, leaves ``[n_envs, ...]``."""
    teacher_states: Any
    """The teacher's carry, leaves ``[n_envs, ...]``."""
    env_states: Any
    """Environment states, leaves ``[n_envs, ...]``."""
    optimizer: nnx.Optimizer
    """Optimizer of the student's ``nnx.Param`` variables."""
    rng_key: Any
    """PRNG key from which the next iteration derives its own."""
    steps_taken: Any
    """Environment steps so far, a uint32 scalar."""


class LoggingLevel(enum.Flag):
    """What an iteration measures; flags combine with ``|``."""

    LOSSES = enum.auto()
    """Actor, critic and regularization losses."""
    CRITIC_EXTRA = enum.auto()
    """Advantages, predicted values and the critic's explained variance."""
    ACTOR_EXTRA = enum.auto()
    """Log-likelihoods and the fraction of clipped probability ratios."""
    ROLLOUT_STATS = enum.auto()
    """Rewards, actions, and the rates at which episodes end and are cut."""
    ROLLOUT_OBS = enum.auto()
    """Observations, leaf by leaf."""
    ENV_METRICS = enum.auto()
    """What the environment reports."""
    NETWORK_METRICS = enum.auto()
    """What the network's modules report."""
    GRAD_NORM = enum.auto()
    """Global norm of the gradient before clipping."""
    WEIGHTS = enum.auto()
    """Statistics over all weights."""
    THROUGHPUT = enum.auto()
    """Steps per second; waits for the device after each iteration."""
    BASIC = LOSSES
    ALL = (
        LOSSES
        | CRITIC_EXTRA
        | ACTOR_EXTRA
        | ROLLOUT_STATS
        | ENV_METRICS
        | NETWORK_METRICS
        | GRAD_NORM
        | WEIGHTS
        | THROUGHPUT
    )
    NONE = 0
