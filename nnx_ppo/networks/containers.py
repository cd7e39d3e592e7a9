"""Modules that combine other modules."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jp
from flax import nnx
from jaxtyping import Shaped

from nnx_ppo.networks.regularization import no_regularization, sum_regularization
from nnx_ppo.networks.types import (
    AnyArray,
    BatchSize,
    ModuleState,
    StatefulModule,
    StatefulModuleOutput,
)


class Sequential(StatefulModule):
    """Feeds each layer the output of the one before.

    Carry and extras are lists with one entry per layer; metrics are a dict keyed by layer number.
    """

    def __init__(self, layers: Iterable[StatefulModule]):
        """Creates the chain from its layers, first to last."""
        self.layers: nnx.List[Any] = nnx.List(layers)

    def __getitem__(self, index: int | slice) -> Any:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Runs the layers in order.

        Raises:
            ValueError: carry or extras do not have one entry per layer.
        """
        self._require_length("carry", module_state)
        if rollout_extras is None:
            rollout_extras = [None] * len(self.layers)
        self._require_length("rollout extras", rollout_extras)

        results = []
        for layer, state, extras in zip(self.layers, module_state, rollout_extras, strict=True):
            result = layer(state, obs, extras)
            obs = result.output
            results.append(result)
        return StatefulModuleOutput(
            next_state=[result.next_state for result in results],
            output=obs,
            regularization_loss=sum_regularization(r.regularization_loss for r in results),
            metrics={index: result.metrics for index, result in enumerate(results)},
            rollout_extras=[result.rollout_extras for result in results],
        )

    def initialize_state(self, batch_size: BatchSize) -> list[ModuleState]:
        """Returns the layers' fresh carries."""
        return [layer.initialize_state(batch_size) for layer in self.layers]

    def reset_state(self, prev_state: ModuleState) -> list[ModuleState]:
        """Resets each layer's carry.

        Raises:
            ValueError: the carry does not have one entry per layer.
        """
        self._require_length("carry", prev_state)
        return [
            layer.reset_state(state) for layer, state in zip(self.layers, prev_state, strict=True)
        ]

    def update_statistics(self, rollout_extras: Any) -> None:
        """Hands each layer its extras.

        Raises:
            ValueError: the extras do not have one entry per layer.
        """
        self._require_length("rollout extras", rollout_extras)
        for layer, extras in zip(self.layers, rollout_extras, strict=True):
            layer.update_statistics(extras)

    def _require_length(self, what: str, values: Any) -> None:
        if not isinstance(values, list | tuple) or len(values) != len(self.layers):
            given = len(values) if isinstance(values, list | tuple) else type(values).__name__
            raise ValueError(
                f"Sequential: expected a list of {len(self.layers)} entries as {what}, one per "
                f"layer, got {given}; use what initialize_state or the previous step returned"
            )


class NamedContainer(StatefulModule):
    """Base of containers whose children have names.

    Carry, extras and metrics are dicts keyed by name. Children run in the order of the
    constructor's arguments.

    Attributes:
        components: The children by name.
        names: Their names in order. Kept apart because Flax sorts the entries of ``components``
            whenever a module passes through ``nnx.split`` and ``nnx.merge``, as under ``nnx.jit``.
    """

    def __init__(
        self, modules: Mapping[str, StatefulModule] | None = None, /, **named: StatefulModule
    ):
        """Creates the container from a mapping or from keyword arguments.

        Raises:
            ValueError: both or neither were given.
        """
        owner = type(self).__name__
        if modules is not None and named:
            raise ValueError(
                f"{owner}: give the modules as one mapping or as keyword arguments, not both; got "
                f"a mapping with {list(modules)} and keywords {list(named)}"
            )
        children = dict(modules) if modules is not None else named
        if not children:
            raise ValueError(f"{owner}: needs at least one module")
        self.components: nnx.Dict[Any] = nnx.Dict(children)
        self.names = tuple(children)

    def initialize_state(self, batch_size: BatchSize) -> dict[str, ModuleState]:
        """Returns the children's fresh carries by name."""
        return {name: self.components[name].initialize_state(batch_size) for name in self.names}

    def reset_state(self, prev_state: ModuleState) -> dict[str, ModuleState]:
        """Resets each child's carry.

        Raises:
            ValueError: the carry's keys are not the children's names.
        """
        self._require_names("carry", prev_state)
        return {name: self.components[name].reset_state(prev_state[name]) for name in self.names}

    def update_statistics(self, rollout_extras: Any) -> None:
        """Hands each child its extras.

        Raises:
            ValueError: the extras' keys are not the children's names.
        """
        self._require_names("rollout extras", rollout_extras)
        for name in self.names:
            self.components[name].update_statistics(rollout_extras[name])

    def _run(
        self, module_state: ModuleState, inputs: Mapping[str, Any], rollout_extras: Any
    ) -> StatefulModuleOutput:
        """Runs each child on its input; the output is a dict by name."""
        self._require_names("carry", module_state)
        if rollout_extras is None:
            rollout_extras = dict.fromkeys(self.names)
        self._require_names("rollout extras", rollout_extras)
        results = {
            name: self.components[name](module_state[name], inputs[name], rollout_extras[name])
            for name in self.names
        }
        return StatefulModuleOutput(
            next_state={name: result.next_state for name, result in results.items()},
            output={name: result.output for name, result in results.items()},
            regularization_loss=sum_regularization(
                result.regularization_loss for result in results.values()
            ),
            metrics={name: result.metrics for name, result in results.items()},
            rollout_extras={name: result.rollout_extras for name, result in results.items()},
        )

    def _select(self, obs: Any) -> dict[str, Any]:
        """Returns the entry of ``obs`` for each child."""
        owner = type(self).__name__
        if not isinstance(obs, Mapping):
            raise TypeError(f"{owner}: expected a dict as input, got {type(obs).__name__}")
        missing = [name for name in self.names if name not in obs]
        if missing:
            raise KeyError(f"{owner}: the input has no entries {missing}; its keys are {list(obs)}")
        return {name: obs[name] for name in self.names}

    def _require_names(self, what: str, values: Any) -> None:
        if not isinstance(values, Mapping) or set(values) != set(self.names):
            given = list(values) if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(
                f"{type(self).__name__}: expected a dict with the keys {list(self.names)} as "
                f"{what}, got {given}; use what initialize_state or the previous step returned"
            )


class Parallel(NamedContainer):
    """Feeds every child the same input and returns a dict of their outputs."""

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Runs every child on ``obs``.

        Raises:
            ValueError: the keys of carry or extras are not the children's names.
        """
        return self._run(module_state, dict.fromkeys(self.names, obs), rollout_extras)


class Concat(NamedContainer):
    """Feeds each child its own entry of a dict and joins their outputs on the last axis.

    Outputs are joined in the order of the constructor's arguments.
    """

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Runs each child on its entry of ``obs``; surplus entries are ignored.

        Raises:
            KeyError: an entry is missing.
            TypeError: ``obs`` is not a dict.
            ValueError: the keys of carry or extras are not the children's names.
        """
        result = self._run(module_state, self._select(obs), rollout_extras)
        outputs = [result.output[name] for name in self.names]
        return result.replace(output=jp.concatenate(outputs, axis=-1))


class Splitter(StatefulModule):
    """Cuts the last axis into named pieces; keeps no carry."""

    def __init__(self, **sizes: int):
        """Creates the splitter.

        Args:
            **sizes: Length of each piece, in order. What is left over at the end is dropped.

        Raises:
            ValueError: there are no pieces, or one has no positive length.
        """
        if not sizes:
            raise ValueError("Splitter: needs at least one piece, for example Splitter(left=3)")
        for name, size in sizes.items():
            if size <= 0:
                raise ValueError(f"Splitter: piece {name!r} must have a positive size, got {size}")
        self.sizes = tuple(sizes.items())

    def __call__(
        self,
        module_state: ModuleState,
        obs: Shaped[AnyArray, "*batch features"],
        rollout_extras: Any = None,
    ) -> StatefulModuleOutput:
        """Returns ``{name: piece}``.

        Raises:
            ValueError: the last axis is shorter than the pieces together.
        """
        total = sum(size for _, size in self.sizes)
        if obs.shape[-1] < total:
            raise ValueError(
                f"Splitter: the pieces {dict(self.sizes)} need {total} features, got an input of "
                f"shape {obs.shape}"
            )
        pieces, start = {}, 0
        for name, size in self.sizes:
            pieces[name] = obs[..., start : start + size]
            start += size
        return StatefulModuleOutput(module_state, pieces, no_regularization(), {})
