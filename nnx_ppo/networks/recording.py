"""Recording what every module of a network returns."""

import warnings
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from nnx_ppo.networks.types import (
    ACTIVATION_KEY,
    BatchSize,
    ModuleState,
    StatefulModule,
    StatefulModuleOutput,
)

__all__ = ["ACTIVATION_KEY", "Recorder", "with_recording", "extract_activations"]


class Recorder(StatefulModule):
    """Adds a module's output to its metrics and changes nothing else.

    Attributes:
        wrapped: The module.
    """

    def __init__(self, wrapped: StatefulModule):
        """Wraps a module."""
        self.wrapped: Any = wrapped

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Returns the module's result with its output among the metrics."""
        result = self.wrapped(module_state, obs, rollout_extras)
        return result.replace(metrics={**result.metrics, ACTIVATION_KEY: result.output})

    def initialize_state(self, batch_size: BatchSize) -> ModuleState:
        """Returns the module's fresh carry."""
        return self.wrapped.initialize_state(batch_size)

    def reset_state(self, prev_state: ModuleState) -> ModuleState:
        """Resets the module's carry."""
        return self.wrapped.reset_state(prev_state)

    def update_statistics(self, rollout_extras: Any) -> None:
        """Hands the module its extras."""
        self.wrapped.update_statistics(rollout_extras)


def with_recording(network: StatefulModule) -> Any:
    """Returns a network that also returns what each of its modules computed.

    The result has containers of its own and shares every Variable with ``network``: weights stay
    the same, while ``eval()`` on one leaves the other's mode alone. Modules without stateful
    modules inside are wrapped in a ``Recorder``; a ``PopulationGraph`` records its populations
    itself. Read the activations from the metrics with ``extract_activations``.

    Args:
        network: Any stateful module; it is not changed.

    Returns:
        The recording network. If ``network`` already records, the same object, with a warning.
    """
    if any(isinstance(module, Recorder) for _, module in nnx.iter_modules(network)):
        warnings.warn(
            "with_recording: the network already has recorders and is returned as it is",
            UserWarning,
            stacklevel=2,
        )
        return network
    return _record(nnx.clone(network, variables=False), {})


def extract_activations(metrics: Any) -> Any:
    """Returns the recorded activations among a step's metrics.

    Args:
        metrics: ``metrics`` of a recording network's result.

    Returns:
        The activations in dicts nested like the network (layer numbers, component names), or None
        if there are none.
    """
    if not isinstance(metrics, Mapping):
        return None
    if ACTIVATION_KEY in metrics:
        return metrics[ACTIVATION_KEY]
    found = {key: extract_activations(value) for key, value in metrics.items()}
    return {key: value for key, value in found.items() if value is not None} or None


def _is_leaf(module: Any) -> bool:
    """Whether a value is a stateful module that contains no other."""
    if not isinstance(module, StatefulModule):
        return False
    inner = (part for _, part in nnx.iter_modules(module) if part is not module)
    return not any(isinstance(part, StatefulModule) for part in inner)


def _record(module: Any, done: dict[int, Any]) -> Any:
    """Makes a module record, in place where it is a container, and returns what replaces it."""
    if id(module) in done:
        return done[id(module)]
    done[id(module)] = module
    if hasattr(module, "record_activations"):
        module.record_activations = True
    elif _is_leaf(module):
        done[id(module)] = Recorder(module)
    else:
        for name, value in list(vars(module).items()):
            if _has_module(value):
                setattr(module, name, _record_parts(value, done))
    return done[id(module)]


def _record_parts(value: Any, done: dict[int, Any]) -> Any:
    if isinstance(value, nnx.Module):
        return _record(value, done)
    # A module may also hold others in a plain list or dict that it declared as data.
    return nnx.data(
        jax.tree.map(
            lambda part: _record(part, done) if isinstance(part, nnx.Module) else part,
            value,
            is_leaf=_is_module_or_variable,
        )
    )


def _has_module(value: Any) -> bool:
    leaves = jax.tree.leaves(value, is_leaf=_is_module_or_variable)
    return any(isinstance(leaf, nnx.Module) for leaf in leaves)


def _is_module_or_variable(value: Any) -> bool:
    # Both are pytrees themselves; mapping into them would replace what must stay shared.
    return isinstance(value, nnx.Module | nnx.Variable)
