"""Small modules that reshape, select, scale and dispatch parts of a pytree."""

import math
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import jax
import jax.numpy as jp

from nnx_ppo.networks.canonical import canonicalize, rebuild_sequence
from nnx_ppo.networks.containers import NamedContainer
from nnx_ppo.networks.regularization import no_regularization
from nnx_ppo.networks.types import ModuleState, StatefulModule, StatefulModuleOutput


class Flattener(StatefulModule):
    """Joins the leaves of a pytree into one flat array, or into one per branch.

    Example:
        >>> import jax.numpy as jp
        >>> obs = {"arm": {"angle": jp.zeros((2, 4)), "touch": jp.zeros((2, 8))}}
        >>> Flattener(preserve_levels=1)((), obs).output["arm"].shape
        (2, 12)
    """

    def __init__(self, preserve_levels: int = 0):
        """Creates the flattener.

        Args:
            preserve_levels: How many levels of dicts, lists and tuples to keep from the top.

        Raises:
            ValueError: the number is negative.
        """
        if preserve_levels < 0:
            raise ValueError(
                f"Flattener: preserve_levels must not be negative, got {preserve_levels}"
            )
        self.preserve_levels = preserve_levels

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Reshapes each leaf to ``(batch, -1)`` and joins them in ``jax.tree`` order.

        Mappings come back as plain dicts, named tuples keep their class.

        Raises:
            TypeError: a leaf lies above the levels to keep.
        """
        output = _flatten_below(canonicalize(obs), self.preserve_levels, "input")
        return StatefulModuleOutput(module_state, output, no_regularization(), {})


def _flatten_below(tree: Any, levels: int, path: str) -> Any:
    if levels == 0:
        return _join(jax.tree.leaves(tree))
    if isinstance(tree, dict):
        return {
            key: _flatten_below(value, levels - 1, f"{path}[{key!r}]")
            for key, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        items = [
            _flatten_below(value, levels - 1, f"{path}[{index}]")
            for index, value in enumerate(tree)
        ]
        return rebuild_sequence(tree, items)
    raise TypeError(
        f"Flattener: reached a leaf of type {type(tree).__name__} at {path} with {levels} levels "
        f"of structure left to keep; lower preserve_levels"
    )


def _join(leaves: list[Any]) -> jax.Array:
    flat = [jp.reshape(leaf, (leaf.shape[0], math.prod(leaf.shape[1:]))) for leaf in leaves]
    if len(flat) == 1:
        return flat[0]
    if len({leaf.dtype for leaf in flat}) > 1:
        # Joining flags and counts with floats is intended here, even where promotion is strict.
        with jax.numpy_dtype_promotion("standard"):
            dtype = jp.result_type(*flat)
        flat = [leaf.astype(dtype) for leaf in flat]
    return jp.concatenate(flat, axis=-1)


class Filter(StatefulModule):
    """Selects and renames parts of its input.

    Example:
        >>> import jax.numpy as jp
        >>> pick = Filter({"angle": ("arm", "angle"), "goal": "goal"})
        >>> obs = {"arm": {"angle": jp.ones((2, 3))}, "goal": jp.zeros((2, 1)), "rest": None}
        >>> sorted(pick((), obs).output)
        ['angle', 'goal']
    """

    def __init__(self, spec: Any):
        """Creates the filter.

        Args:
            spec: A dict that says for each output key where its value comes from: a string ``k``
                for ``x[k]``, a tuple ``(k1, k2, ...)`` for ``x[k1][k2]...``, or a function of the
                whole input.

        Raises:
            TypeError: ``spec`` is not a dict, or an entry is none of those.
        """
        if not isinstance(spec, dict):
            raise TypeError(f"Filter: expected a dict, got {type(spec).__name__}")
        for name, entry in spec.items():
            if not isinstance(entry, str | tuple) and not callable(entry):
                raise TypeError(
                    f"Filter: entry {name!r} must be a key, a tuple of keys or a function, got "
                    f"{type(entry).__name__}"
                )
        self.spec = tuple(spec.items())

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Returns a dict with the spec's keys.

        Raises:
            KeyError: the input has nothing at a path.
        """
        output = {name: _extract(name, entry, obs) for name, entry in self.spec}
        return StatefulModuleOutput(module_state, output, no_regularization(), {})


def _extract(name: str, entry: str | tuple[Any, ...] | Callable[..., Any], obs: Any) -> Any:
    if not isinstance(entry, str | tuple):
        return entry(obs)
    keys = (entry,) if isinstance(entry, str) else entry
    value = obs
    for depth, key in enumerate(keys):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            available = list(value) if isinstance(value, Mapping) else type(value).__name__
            raise KeyError(
                f"Filter: no {list(keys[: depth + 1])} in the input for {name!r}; found {available}"
            ) from error
    return value


class Scale(StatefulModule):
    """Multiplies every leaf by a fixed factor."""

    def __init__(self, factor: SupportsFloat):
        """Creates the module from its factor."""
        self.factor = float(factor)

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Returns the scaled input; the carry passes through unchanged."""
        output = jax.tree.map(lambda leaf: leaf * self.factor, obs)
        return StatefulModuleOutput(module_state, output, no_regularization(), {})


class Merge(NamedContainer):
    """Feeds every child the same input and unites the dicts they return into one."""

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Runs every child on ``obs``.

        Raises:
            TypeError: a child's output is not a dict.
            ValueError: two children return the same key, or the keys of carry or extras are not
                the children's names.
        """
        result = self._run(module_state, dict.fromkeys(self.names, obs), rollout_extras)
        merged: dict[Any, Any] = {}
        origin: dict[Any, str] = {}
        for name in self.names:
            output = result.output[name]
            if not isinstance(output, Mapping):
                raise TypeError(
                    f"Merge: the output of {name!r} must be a dict, got {type(output).__name__}"
                )
            for key, value in output.items():
                if key in merged:
                    raise ValueError(
                        f"Merge: {origin[key]!r} and {name!r} both return the key {key!r}; rename "
                        f"one, for example with a Filter"
                    )
                merged[key], origin[key] = value, name
        return result.replace(output=merged)


class Map(NamedContainer):
    """Feeds each child its own entry of a dict and returns a dict of their outputs."""

    def __call__(
        self, module_state: ModuleState, obs: Any, rollout_extras: Any = None
    ) -> StatefulModuleOutput:
        """Runs each child on its entry of ``obs``; surplus entries are ignored.

        Raises:
            KeyError: an entry is missing.
            TypeError: ``obs`` is not a dict.
            ValueError: the keys of carry or extras are not the children's names.
        """
        return self._run(module_state, self._select(obs), rollout_extras)
