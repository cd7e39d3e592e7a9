"""States of the built-in environments."""

import dataclasses
from typing import Any

import jax
from jax.typing import ArrayLike

from nnx_ppo.jax_dataclass import JaxDataclass


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class EnvironmentState(JaxDataclass):
    """State of an environment of one robot."""

    obs: Any
    """What a policy sees, float32 leaves."""
    done: ArrayLike
    """1.0 if the episode ended with this step, else 0.0. The built-in tasks never end."""
    reward: Any
    """Reward of the step, a float32 scalar or a dict of them; 0 after a reset."""
    info: dict[str, Any]
    """Kept from step to step; empty unless a wrapper adds to it."""
    metrics: dict[str, Any]
    """What the reward is made of, float32 scalars."""
    mechanism: Any
    """True positions and velocities, in rad and rad/s."""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class DelayedState(EnvironmentState):
    """State of an environment whose sensors report late."""

    pending: Any
    """Readings on their way, ``(delay_steps, observation_size)``, the newest first."""
