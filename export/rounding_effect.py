"""How far rounding alone leads a network astray.

Two runtimes that add up the same numbers in another order differ in the last bits. A recurrent
network with gains above one amplifies that from step to step: left to itself it ends up elsewhere,
in any format, and so would the network's own run on another processor. How far is measured on the
network itself: its carry is disturbed in each step by as much as single steps of the artefact are
off, and what becomes of that is no fault of the artefact.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from export.network_copy import NetworkCopy
from export.trajectory import Trajectory, exported_leaves_names, outputs_of_steps
from serving.manifest import Manifest
from serving.parity_record import Comparison

_UNIT = float(np.finfo(np.float32).eps)


def rounding_effects(
    manifest: Manifest, reference: NetworkCopy, trajectory: Trajectory, forced: Comparison
) -> dict[str, float]:
    """Return output → largest distance between the network's run and a disturbed one of it.

    Every float of the carry that a step changes is moved up or down, each element always in the
    same direction, by the larger of the error that `forced` shows for its port and one unit in the
    last place. That is the pessimistic case of a rounding error that is always on one side.

    Args:
        manifest: Ports and trees of the bundle.
        reference: The network, as `record` takes it.
        trajectory: Its undisturbed run.
        forced: The artefact's comparison in which each step starts from the network's carry.
    """
    next_names = {port.name: port.next_name for port in manifest.carry_ports}
    errors = {port.name: port.max_abs_error for port in forced.ports}
    sizes = [
        0.0 if leaf.port is None else errors[next_names[leaf.port]]
        for leaf in manifest.network_carry.leaves
    ]

    def disturbed(carry: Any, next_carry: Any) -> Any:
        before, after = jax.tree.leaves(carry), jax.tree.leaves(next_carry)
        moved = [
            _moved(old, new, size, seed)
            for seed, (old, new, size) in enumerate(zip(before, after, sizes, strict=True))
        ]
        return jax.tree.unflatten(jax.tree.structure(next_carry), moved)

    expected = trajectory.outputs(manifest)
    names = [
        *(port.name for port in manifest.action_ports),
        *(next_names[name] for name in exported_leaves_names(manifest)),
        *(port.name for port in manifest.extra_output_ports),
    ]
    effects = dict.fromkeys(names, 0.0)
    run = outputs_of_steps(
        manifest, reference, trajectory.observations, trajectory.reset, disturbed
    )
    for t, outputs in enumerate(run):
        values = [value for group in outputs for value in group]
        for name, value in zip(names, values, strict=True):
            effects[name] = max(effects[name], _distance(np.asarray(value), expected[name][t]))
    return effects


def _moved(old: Any, new: Any, size: float, seed: int) -> Any:
    """Return `new` with the elements disturbed that are not those of `old`."""
    # Keys of random streams are no numbers, and counters have no rounding.
    if not jnp.issubdtype(new.dtype, jnp.floating):
        return new
    directions = np.random.default_rng(seed).choice([-1.0, 1.0], new.shape[1:])
    step = jnp.maximum(jnp.asarray(size, new.dtype), jnp.abs(new) * jnp.asarray(_UNIT, new.dtype))
    return jnp.where(new == old, new, new + step * jnp.asarray(directions, new.dtype))


def _distance(actual: np.ndarray, expected: np.ndarray) -> float:
    if expected.dtype.kind != "f":
        return 0.0
    with np.errstate(invalid="ignore"):
        distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    # What is not finite has to be equal, disturbed or not.
    return float(distance[np.isfinite(distance)].max(initial=0.0))
