"""Interface between network modules and everything that runs them.

A module has two kinds of state. Variables (weights, running statistics) belong to the module and
outlive episodes. The carry (recurrent state, delay buffers) belongs to an environment: it is
passed in, returned, and reset together with that environment.
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from flax import nnx
from jaxtyping import Num

from nnx_ppo.jax_dataclass import JaxDataclass

ACTIVATION_KEY = "__activation__"
"""Metrics key under which recorded activations travel (see ``networks.recording``)."""

ModuleState: TypeAlias = Any
"""The carry of a module: any pytree whose leaves lead with the batch axis."""

BatchSize: TypeAlias = Any
"""A number of environments: an int, or a symbolic dimension of ``jax.export``."""

AnyArray: TypeAlias = jax.Array | np.ndarray
"""What modules accept as an array: one of JAX, a tracer, or one of NumPy."""

if TYPE_CHECKING:
    # Whoever reads a loss knows which of its forms to expect; only the run-time check needs all.
    RegularizationLoss: TypeAlias = Any
else:
    RegularizationLoss = Num[AnyArray, "..."] | float | int


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class PPONetworkOutput(JaxDataclass):
    """What a policy with a critic returns for one step; arrays or pytrees of arrays."""

    actions: Any
    """Actions, each leaf ``[*time, batch, action_size]``."""
    loglikelihoods: Any
    """Log-likelihood of each action under the policy, leaves ``[*time, batch]``."""
    value_estimates: Any
    """Estimated returns, leaves ``[*time, batch]``."""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class StatefulModuleOutput(JaxDataclass):
    """What every stateful module returns for one step."""

    next_state: ModuleState
    """The carry for the next step, structure, shapes and dtypes as those of the carry passed in."""
    output: Any
    """The module's result, a pytree whose leaves lead with the batch axis."""
    regularization_loss: RegularizationLoss
    """Term to add to the loss: a scalar, or one value per environment ``(batch,)``."""
    metrics: Any
    """Quantities worth logging: a dict with string or integer keys, possibly nested."""
    rollout_extras: Any = None
    """What this module wants back when the step is replayed, or None (see ``StatefulModule``)."""


class StatefulModule(abc.ABC, nnx.Module):
    """A network module with explicit carry.

    Calls work on one time step of a batch: every leaf of the carry and of the input leads with the
    batch axis and has no time axis.

    ``rollout_extras`` is a pytree parallel to the carry. During a rollout the caller passes None
    and each module returns what it wants to see again (a sampler its action before squashing, a
    normalizer its input), or None. While the loss replays the step, the stored value is passed
    back in. Containers hand each child its own part.

    ``__call__`` must not write a Variable that changes any output; running statistics change only
    in ``update_statistics``, which training calls once per iteration. The counters of random
    streams are the exception.
    """

    @abc.abstractmethod
    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Computes one step.

        Args:
            module_state: The carry, as ``initialize_state`` or the previous step returned it.
            obs: The input, a pytree whose leaves lead with the batch axis.
            rollout_extras: None, or what this module emitted when the step was first taken.

        Returns:
            The next carry and the output, with regularization, metrics and extras.
        """

    def initialize_state(self, batch_size: BatchSize) -> ModuleState:
        """Returns the carry of ``batch_size`` fresh environments; leaves lead with that axis."""
        del batch_size
        return ()

    def reset_state(self, prev_state: ModuleState) -> ModuleState:
        """Returns the carry after an episode ended, with the structure and shapes of the given one.

        Called on whole batches and, inside ``jax.vmap``, on the slice of one environment without a
        batch axis: implementations must not rely on the number of axes.
        """
        return prev_state

    def update_statistics(self, rollout_extras: Any) -> None:
        """Updates running statistics from one rollout.

        Args:
            rollout_extras: What this module emitted, stacked to leaves ``[time, batch, *feature]``.
        """
        del rollout_extras
