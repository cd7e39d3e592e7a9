"""Recorded trajectories: observations to feed, and what the user's network makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from export.action_scaling import apply_action_values
from export.carry_conversion import exported_leaves
from export.errors import ObservationSpecError
from export.extra_outputs import choose
from export.network_copy import NetworkCopy, action_of_output
from export.prng_keys import without_key_type
from export.structure import leaf_names, paths_of, rebuild
from nnx_ppo.networks.normalizer import Normalizer
from serving import tree as serving_tree
from serving.manifest import Manifest

GOLDEN_ROWS = 2
"""Environments of the trajectory that a bundle holds, unless its batch size is fixed."""
_LARGE = 10.0
"""Size of the large corner case, in standard deviations."""


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One recorded run of the user's network under `jax.jit`, at one batch size."""

    observations: list[np.ndarray]
    """One array `[T, B, ...]` per observation leaf, in the manifest's tree order."""
    reset: np.ndarray
    """`[T, B]` bool: the row is reset before the step."""
    actions: dict[str, np.ndarray]
    """Action port → `[T, B, ...]`."""
    next_carry: dict[str, np.ndarray]
    """Carry port → `[T, B, ...]` after each step, in the exported layout."""
    extras: dict[str, np.ndarray]
    """Extra output → `[T, B, ...]`."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.reset.shape[0]

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return self.reset.shape[1]

    def outputs(self, manifest: Manifest) -> dict[str, np.ndarray]:
        """Return all outputs by their tensors' names, `[T, B, ...]`."""
        next_names = {port.name: port.next_name for port in manifest.carry_ports}
        carry = {next_names[name]: values for name, values in self.next_carry.items()}
        return {**self.actions, **carry, **self.extras}


def record(
    manifest: Manifest,
    reference: NetworkCopy,
    observations: list[np.ndarray],
    reset: np.ndarray,
) -> Trajectory:
    """Run the user's network, free running, over observations with resets.

    Args:
        manifest: Ports and trees of the bundle.
        reference: The network in evaluation mode, otherwise as the user trained it; recording if
            the bundle's extra outputs need it.
        observations: One array `[T, B, ...]` per observation leaf.
        reset: `[T, B]` bool.
    """
    steps = reset.shape[0]
    actions = _Rows([port.name for port in manifest.action_ports], steps)
    carries = _Rows(exported_leaves_names(manifest), steps)
    extras = _Rows([port.name for port in manifest.extra_output_ports], steps)
    for t, outputs in enumerate(outputs_of_steps(manifest, reference, observations, reset)):
        for rows, values in zip((actions, carries, extras), outputs, strict=True):
            rows.put(t, values)
    return Trajectory(
        observations=observations,
        reset=reset,
        actions=actions.arrays,
        next_carry=carries.arrays,
        extras=extras.arrays,
    )


def outputs_of_steps(
    manifest: Manifest,
    reference: NetworkCopy,
    observations: list[np.ndarray],
    reset: np.ndarray,
    disturbed: Callable[[Any, Any], Any] | None = None,
) -> Iterator[tuple[list[Any], list[Any], list[Any]]]:
    """Yield actions, carry in the exported layout and extra outputs of each step, in port order.

    Args:
        manifest: As `record` takes it, like the next three.
        reference: The network.
        observations: What it observes.
        reset: When its rows are reset.
        disturbed: Returns the carry to go on from, given the carry before a step, after any reset,
            and the one after it; None to go on from that. Traced by JAX.
    """

    @jax.jit
    def step(carry: Any, observation: Any, reset_rows: Any) -> Any:
        carry = jax.tree.map(
            lambda fresh, old: jnp.where(_like_rows(reset_rows, old), fresh, old),
            reference.merge().reset_state(carry),
            carry,
        )
        action, next_carry, extras = _stepped(manifest, reference, carry, observation)
        if disturbed is not None:
            next_carry = disturbed(carry, next_carry)
        leaves = [without_key_type(leaf) for leaf in jax.tree.leaves(next_carry)]
        acted = apply_action_values(
            jax.tree.leaves(action),
            manifest.action_ports,
            manifest.metadata,
            manifest.applied_to_action,
        )
        return acted, next_carry, leaves, extras

    carry = reference.initialize_state(reset.shape[1])
    for t in range(reset.shape[0]):
        observation = rebuild(manifest.observation, [leaf[t] for leaf in observations])
        action, carry, leaves, extras = step(carry, observation, reset[t])
        host = [np.asarray(leaf) for leaf in leaves]
        yield action, list(exported_leaves(manifest.network_carry, host).values()), extras


def _stepped(
    manifest: Manifest, reference: NetworkCopy, carry: Any, observation: Any
) -> tuple[Any, Any, list[Any]]:
    """Return action, next carry and extra outputs in port order."""
    if not manifest.extra_outputs:
        return *reference.step(carry, observation), []
    output = reference.merge()(carry, observation)
    chosen = choose(output, manifest.extra_outputs)
    extras = [jnp.asarray(chosen[port.name][1]) for port in manifest.extra_output_ports]
    return action_of_output(output), output.next_state, extras


def exported_leaves_names(manifest: Manifest) -> list[str]:
    """Return the carry ports in the order in which the network's carry holds them."""
    ports = [leaf.port for leaf in manifest.network_carry.leaves if leaf.port is not None]
    return list(dict.fromkeys(ports))


class _Rows:
    """Arrays `[T, ...]` by name, filled step by step; a long recording is in memory only once."""

    def __init__(self, names: list[str], steps: int):
        self.arrays: dict[str, np.ndarray] = {}
        self._names = names
        self._steps = steps

    def put(self, step: int, values: list[Any]) -> None:
        """Put the arrays of one step, in the order of the names."""
        for name, value in zip(self._names, values, strict=True):
            array = np.asarray(value)
            if name not in self.arrays:
                self.arrays[name] = np.empty((self._steps, *array.shape), array.dtype)
            self.arrays[name][step] = array


def _like_rows(mask: Any, leaf: Any) -> Any:
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - 1))


def reset_schedule(steps: int, batch_size: int, seed: int = 0) -> np.ndarray:
    """Return which rows to reset before which step, `[steps, batch_size]` bool.

    All rows at two thirds, every second row at one third, and single rows at random about once in
    97 steps; never before the first step, where every row is fresh anyway.
    """
    generator = np.random.default_rng(seed)
    reset = generator.random((steps, batch_size)) < 1.0 / 97.0
    reset[steps // 3, ::2] = True
    reset[2 * steps // 3] = True
    reset[0] = False
    return reset


def generate_observations(
    manifest: Manifest, network: Any, steps: int, batch_size: int, seed: int = 0
) -> list[np.ndarray]:
    """Make observations like those of training, with corner cases mixed in.

    Floats move smoothly around the mean of the network's own normalizer with its standard
    deviation (around 0 with 1 without one); some steps are all zero, some constant, some
    10 times as far from the mean as usual. Bools are drawn at random, `uint8` over its range, other
    integers from 0 to 3.

    Returns:
        One array `[steps, batch_size, *shape]` per leaf of the manifest's observation.
    """
    generator = np.random.default_rng(seed)
    leaves = serving_tree.leaves(manifest.observation)
    means, scales = _normalizer_statistics(network, manifest)
    return [
        _generate_leaf(generator, leaf, mean, scale, steps, batch_size)
        for leaf, mean, scale in zip(leaves, means, scales, strict=True)
    ]


def _generate_leaf(
    generator: np.random.Generator, leaf: Any, mean: Any, scale: Any, steps: int, batch_size: int
) -> np.ndarray:
    shape, dtype = (steps, batch_size, *leaf.shape), np.dtype(leaf.dtype)
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    if dtype.kind in "iu":
        high = 256 if dtype == np.uint8 else 4
        return generator.integers(0, high, shape).astype(dtype)
    noise = generator.standard_normal(shape)
    smooth = np.empty(shape)
    smooth[0] = noise[0]
    for t in range(1, steps):
        smooth[t] = 0.9 * smooth[t - 1] + np.sqrt(1.0 - 0.9**2) * noise[t]
    values = mean + scale * smooth
    for t in range(7, steps, 61):
        values[t] = 0.0
    for t in range(23, steps, 127):
        values[t] = mean + _LARGE * scale * noise[t]
    for t in range(41, steps - 3, 173):
        values[t : t + 3] = values[t]
    return values.astype(dtype)


def _normalizer_statistics(network: Any, manifest: Manifest) -> tuple[list[Any], list[Any]]:
    """Return mean and standard deviation per observation leaf, from the first fitting "
    "normalizer.
    """
    leaves = serving_tree.leaves(manifest.observation)
    shapes = [tuple(leaf.shape) for leaf in leaves]
    for _, module in nnx.iter_modules(network):
        if not isinstance(module, Normalizer) or float(module.counter.get_value()) == 0.0:
            continue
        means = [np.asarray(m, np.float64) for m in jax.tree.leaves(module.mean.get_value())]
        squares = [np.asarray(m, np.float64) for m in jax.tree.leaves(module.M2.get_value())]
        if [m.shape for m in means] == shapes:
            count = float(module.counter.get_value())
            return means, [np.sqrt(np.maximum(s / count, 1e-12)) for s in squares]
    return [0.0] * len(leaves), [1.0] * len(leaves)


def given_observations(
    manifest: Manifest, observations: Any, steps: int, batch_size: int
) -> list[np.ndarray]:
    """Lay recorded observations of the caller out as `[steps, batch_size, ...]`.

    Args:
        manifest: Says what structure is expected.
        observations: The observation tree with leaves `[T, ...]` or `[T, B, ...]`. Shorter or
            narrower recordings are repeated, each row shifted in time.
        steps: How many steps are wanted.
        batch_size: How many rows are wanted.

    Raises:
        ObservationSpecError: Structure, shape or dtype do not fit.
    """
    node = manifest.observation
    flat = serving_tree.flatten(node, observations, root="obs", error=ObservationSpecError)
    names = leaf_names("obs", paths_of(observations, "observation"))
    result = []
    for name, leaf, value in zip(names, serving_tree.leaves(node), flat, strict=True):
        array = np.asarray(value)
        if str(array.dtype) != leaf.dtype:
            raise ObservationSpecError(f"{name} has dtype {array.dtype}, expected {leaf.dtype}")
        if list(array.shape[1:]) == leaf.shape:
            array = array[:, None]
        if list(array.shape[2:]) != leaf.shape or array.shape[0] == 0:
            raise ObservationSpecError(
                f"{name} has shape {list(array.shape)}, expected [T, *{leaf.shape}] or [T, B, "
                f"*{leaf.shape}]"
            )
        rows = np.arange(batch_size)
        times = (np.arange(steps)[:, None] + 17 * (rows // array.shape[1])[None]) % array.shape[0]
        result.append(array[times, (rows % array.shape[1])[None]])
    return result
