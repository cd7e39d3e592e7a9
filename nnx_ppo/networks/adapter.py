"""The leaf that makes a policy with a critic out of two modules."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jp

from nnx_ppo.networks.regularization import sum_regularization
from nnx_ppo.networks.types import (
    BatchSize,
    ModuleState,
    PPONetworkOutput,
    StatefulModule,
    StatefulModuleOutput,
)


class PPOAdapter(StatefulModule):
    """Feeds the same input to an action port and a value port, and packs what they return.

    The action port returns a tree of sampler dicts, ``{"action": ..., "log_likelihood": ...}``;
    the value port a tree of value estimates. Carry, extras and metrics are dicts with the keys
    ``action`` and ``value``.
    """

    def __init__(self, action: StatefulModule, value: StatefulModule):
        """Creates the adapter.

        Args:
            action: Module ending in samplers.
            value: Module whose leaves are ``(batch, 1)`` or ``(batch,)``.
        """
        self.action: Any = action
        self.value: Any = value

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Runs both ports; the output is a ``PPONetworkOutput``.

        Raises:
            TypeError: a leaf of the action port's output is not a sampler dict.
        """
        if rollout_extras is None:
            rollout_extras = {"action": None, "value": None}
        action = self.action(module_state["action"], obs, rollout_extras["action"])
        value = self.value(module_state["value"], obs, rollout_extras["value"])
        output = PPONetworkOutput(
            actions=_pick("action", action.output),
            loglikelihoods=_pick("log_likelihood", action.output),
            value_estimates=jax.tree.map(_without_feature_axis, value.output),
        )
        return StatefulModuleOutput(
            next_state={"action": action.next_state, "value": value.next_state},
            output=output,
            regularization_loss=sum_regularization(
                [action.regularization_loss, value.regularization_loss]
            ),
            metrics={"action": action.metrics, "value": value.metrics},
            rollout_extras={"action": action.rollout_extras, "value": value.rollout_extras},
        )

    def initialize_state(self, batch_size: BatchSize) -> dict[str, ModuleState]:
        """Returns both ports' fresh carries."""
        return {
            "action": self.action.initialize_state(batch_size),
            "value": self.value.initialize_state(batch_size),
        }

    def reset_state(self, prev_state: ModuleState) -> dict[str, ModuleState]:
        """Resets both ports' carries."""
        return {
            "action": self.action.reset_state(prev_state["action"]),
            "value": self.value.reset_state(prev_state["value"]),
        }

    def update_statistics(self, rollout_extras: Any) -> None:
        """Hands each port its extras."""
        self.action.update_statistics(rollout_extras["action"])
        self.value.update_statistics(rollout_extras["value"])


def _is_sampler_dict(node: Any) -> bool:
    return isinstance(node, Mapping) and "action" in node and "log_likelihood" in node


def _pick(key: str, sampled: Any) -> Any:
    """Replaces each sampler dict in a tree by one of its entries."""

    def pick(path: Any, node: Any) -> Any:
        if not _is_sampler_dict(node):
            raise TypeError(
                f"PPOAdapter: the action port's output{jax.tree_util.keystr(path)} is "
                f"{type(node).__name__}, expected a dict with 'action' and 'log_likelihood'; end "
                f"the action port with an action sampler"
            )
        return node[key]

    return jax.tree_util.tree_map_with_path(pick, sampled, is_leaf=_is_sampler_dict)


def _without_feature_axis(value: Any) -> Any:
    # A value of shape (1,) is a batch of one and already has no feature axis.
    if value.ndim >= 2 and value.shape[-1] == 1:
        return jp.squeeze(value, axis=-1)
    return value
