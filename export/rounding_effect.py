"""How far rounding alone leads a network astray.

Two runtimes that add up the same numbers in another order differ in the last bits. A recurrent
network with gains above one amplifies that from step to step: left to itself it ends up elsewhere,
in any format, and so would the network's own run on another processor. How far is measured on the
network itself: its carry is disturbed in each step by as much as single steps of the artefact are
off, and what becomes of that is no fault of the artefact.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from export.trajectory import ReferenceRun, reference_step

MARGIN = 8.0
"""Another disturbance of the same size leads as far a few steps earlier or later."""

_UNIT = float(np.finfo(np.float32).eps)


class RoundingEffect:
    """Runs a network as it is and disturbed, side by side, over a trajectory.

    Args:
        run: The network's run over the trajectory.
    """

    def __init__(self, run: ReferenceRun):
        self._run = run
        self._manifest = run.manifest

    def of(self, step_errors: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Return output → how far off each step may be for that reason, `[T]` float64.

        That is the largest distance between the two runs up to the step, times `MARGIN`.

        Every float of the carry that a step changes is moved up or down, each element always in the
        same direction, by the larger of the error given for its port and one unit in the last
        place. That is the pessimistic case of a rounding error always to one side.

        An artefact none of whose single steps is off at all has no rounding to be led astray by:
        then there is no effect, and an empty dict.

        Args:
            step_errors: Output → largest error of a step that started from the network's carry.
        """
        if not any(step_errors.values()):
            return {}
        next_names = {port.name: port.next_name for port in self._manifest.carry_ports}
        ports = [leaf.port for leaf in self._manifest.network_carry.leaves]
        sizes = [0.0 if port is None else step_errors[next_names[port]] for port in ports]
        run = self._run
        carry = run.reference.initialize_state(run.reset.shape[1])
        actions, leaves, extras = self._distances(sizes, carry, run.observations, run.reset)
        none = np.zeros(len(run.reset))
        effects = {next_names[port]: none for port in ports if port is not None}
        for port, distance in zip(ports, leaves, strict=True):
            if port is not None:
                effects[next_names[port]] = np.maximum(effects[next_names[port]], distance)
        for names, distances in (
            (self._manifest.action_ports, actions),
            (self._manifest.extra_output_ports, extras),
        ):
            pairs = zip(names, distances, strict=True)
            effects |= {port.name: np.asarray(distance, np.float64) for port, distance in pairs}
        return {name: MARGIN * np.maximum.accumulate(far) for name, far in effects.items()}

    @functools.cached_property
    def _distances(self) -> Any:
        """One compiled function for all artefacts: only the sizes differ."""
        step = functools.partial(reference_step, self._manifest, self._run.reference)

        def run(sizes: list[Any], carry: Any, observations: list[Any], reset: Any) -> Any:
            def both(pair: Any, given: tuple[list[Any], Any]) -> Any:
                acted, before, after, extras = jax.vmap(step, (0, None, None))(pair, *given)
                old, new = jax.tree.leaves(before), jax.tree.leaves(after)
                moved = [
                    _second_moved(*leaves, seed)
                    for seed, leaves in enumerate(zip(old, new, sizes, strict=True))
                ]
                distances = jax.tree.map(_distance, (acted, moved, extras))
                return jax.tree.unflatten(jax.tree.structure(after), moved), distances

            twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), carry)
            _, distances = jax.lax.scan(both, twice, (observations, reset))
            return distances

        return jax.jit(run)


def _second_moved(old: Any, new: Any, size: Any, seed: int) -> Any:
    """Return the pair `new` with those elements of the second disturbed that `old` had not."""
    # Keys of random streams are no numbers, and counters have no rounding.
    if not jnp.issubdtype(new.dtype, jnp.floating):
        return new
    directions = np.random.default_rng(seed).choice([-1.0, 1.0], new.shape[2:])
    step = jnp.maximum(jnp.asarray(size, new.dtype), jnp.abs(new) * jnp.asarray(_UNIT, new.dtype))
    moved = jnp.where(new == old, new, new + step * jnp.asarray(directions, new.dtype))
    return jnp.stack([new[0], moved[1]])


def _distance(pair: Any) -> Any:
    if not jnp.issubdtype(pair.dtype, jnp.floating):
        return jnp.zeros((), jnp.float32)
    distance = jnp.abs(pair[0].astype(jnp.float32) - pair[1].astype(jnp.float32))
    # What is not finite has to be equal, disturbed or not.
    return jnp.max(jnp.where(jnp.isfinite(distance), distance, 0.0), initial=0.0)
