"""Recorded trajectories: observations to feed, and what the user's network makes of them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from export.action_scaling import apply_action_values
from export.carry_conversion import ExportedLayout
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
_PIECE_ELEMENTS = 1 << 17
"""Elements of the largest output in a piece of a run: few enough for a processor's cache."""
_LARGE = 10.0
"""Size of the large corner case, in standard deviations."""


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One recorded run of the user's network under `jax.jit`, at one batch size."""

    observations: list[np.ndarray]
    """One array `[T, B, ...]` per observation leaf, in the manifest's tree order."""
    reset: np.ndarray
    """`[T, B]` bool: the row is reset before the step."""
    outputs: dict[str, np.ndarray]
    """Tensor name of an action, the next carry or an extra output → `[T, B, ...]`."""


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
    pieces = list(ReferenceRun(manifest, reference, observations, reset).pieces())
    outputs = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return Trajectory(observations, reset, outputs)


class ReferenceRun:
    """What `record` records, a few steps at a time: a long run never lies in memory whole.

    Args:
        manifest: As `record` takes it, like the rest.
        reference: The network.
        observations: What it observes.
        reset: When its rows are reset.
    """

    def __init__(
        self,
        manifest: Manifest,
        reference: NetworkCopy,
        observations: list[np.ndarray],
        reset: np.ndarray,
    ):
        self.manifest = manifest
        self.reference = reference
        self.observations = observations
        self.reset = reset
        self._step = jax.jit(functools.partial(reference_step, manifest, reference))
        self._layout = ExportedLayout(manifest.network_carry)

    def pieces(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield output → `[t, B, ...]` for the next few steps.

        Actions come first, then the next carry in the exported layout, then extra outputs.
        """
        manifest = self.manifest
        steps, rows = self.reset.shape
        ports = [*manifest.action_ports, *manifest.carry_ports, *manifest.extra_output_ports]
        largest = rows * max(math.prod(port.shape) for port in ports)
        length = max(1, _PIECE_ELEMENTS // max(1, largest))
        carry = self.reference.initialize_state(rows)
        for first in range(0, steps, length):
            recorded: list[tuple[list[Any], list[Any], list[Any]]] = []
            for t in range(first, min(first + length, steps)):
                observed = [leaf[t] for leaf in self.observations]
                actions, _, carry, extras = self._step(carry, observed, self.reset[t])
                leaves = [without_key_type(leaf) for leaf in jax.tree.leaves(carry)]
                recorded.append(jax.tree.map(np.asarray, (actions, leaves, extras)))
            yield self._by_name(
                *(zip(*group, strict=True) for group in zip(*recorded, strict=True))
            )

    def _by_name(self, actions: Any, leaves: Any, extras: Any) -> dict[str, np.ndarray]:
        manifest, rows = self.manifest, self.reset.shape[1]
        # The conversion knows rows only, so steps are rows to it.
        exported = self._layout.of_leaves([np.concatenate(steps) for steps in leaves])
        pairs = zip(manifest.action_ports, actions, strict=True)
        piece = {port.name: np.stack(steps) for port, steps in pairs}
        for port in manifest.carry_ports:
            piece[port.next_name] = exported[port.name].reshape(-1, rows, *port.shape)
        pairs = zip(manifest.extra_output_ports, extras, strict=True)
        return piece | {port.name: np.stack(steps) for port, steps in pairs}


def reference_step(
    manifest: Manifest, reference: NetworkCopy, carry: Any, observation: list[Any], reset: Any
) -> tuple[list[Any], Any, Any, list[Any]]:
    """Reset rows of the network's carry, then step it. To be traced by JAX.

    Args:
        manifest: Ports and trees of the bundle.
        reference: The network, as `record` takes it.
        carry: The network's, leaves `[B, ...]`.
        observation: The observation's leaves `[B, ...]`.
        reset: `[B]` bool.

    Returns:
        Actions in port order, the carry after the reset, the carry after the step, extra outputs in
        port order.
    """
    carry = jax.tree.map(
        lambda fresh, old: jnp.where(_like_rows(reset, old), fresh, old),
        reference.merge().reset_state(carry),
        carry,
    )
    tree = rebuild(manifest.observation, observation)
    extras: list[Any] = []
    if manifest.extra_outputs:
        output = reference.merge()(carry, tree)
        chosen = choose(output, manifest.extra_outputs)
        extras = [jnp.asarray(chosen[port.name][1]) for port in manifest.extra_output_ports]
        action, next_carry = action_of_output(output), output.next_state
    else:
        action, next_carry = reference.step(carry, tree)
    acted = apply_action_values(
        jax.tree.leaves(action),
        manifest.action_ports,
        manifest.metadata,
        manifest.applied_to_action,
    )
    return acted, carry, next_carry, extras


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
