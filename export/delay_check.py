"""Refuse a network that reads a delay's ring itself: an exported step lays it out otherwise.

A module that looks into the carry of a `Delay` or `PopulationGraph` must do so through its delay
line, which knows both layouts. One that does not would go on with other values in silence. Who
takes a ring or its pointer is seen in the recorded operations. Where it is not the delay line, both
layouts are given the same past values, and one step must come out the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jcore

from export.delay_failures import REMEDY, listed
from export.delay_layout import CarryLeaf, delay_modules, ring_to_time_order
from export.delay_readers import first_reader
from export.errors import DelayLayoutError
from export.module_scopes import source_line_of
from export.network_copy import NetworkCopy
from export.prng_keys import is_key, without_key_type
from export.structure import leaf_names, paths_of
from export.trajectory import GOLDEN_ROWS

_ROWS = 4
_TRIES = 2
"""Each with other pointers, since in a short ring some slots happen to agree."""
_BOUND = 1e-3
"""Relative to the largest value of an output, but at least to 1; half precision has 10 times it."""


def refuse_ring_readers(
    reference: NetworkCopy,
    copy: NetworkCopy,
    layout: list[CarryLeaf],
    observation: Any,
    batch_size: int | None,
    in_time_order: jcore.ClosedJaxpr,
) -> None:
    """Look for who takes a ring past its delay line, and then compare single steps.

    Compiled steps are quick to compare, but a badly conditioned network makes much of how the
    compiler rounds. So what differs there is repeated operation by operation: a network that leaves
    the layout to its delay lines then computes the same from the same operands, to the last bit.
    The tolerance is for one that takes, say, the mean over a ring, in another order.

    Args:
        reference: The network with its rings.
        copy: The network in time order.
        layout: How the leaves of their carries correspond.
        observation: A tree of `jax.ShapeDtypeStruct` without a batch axis.
        batch_size: A fixed number of environments, or None for any.
        in_time_order: The recorded step of `copy`; its inputs end with carry and observation.

    Raises:
        DelayLayoutError: Saying what differs, where a ring is taken, and which modules have delays.
    """
    if not any(leaf.source == "delay_buffer" for leaf in layout):
        return
    line = _line_of_reader(reference, layout, observation, batch_size, in_time_order)
    if line is None:
        return
    rows = _ROWS if batch_size is None else batch_size
    generator = np.random.default_rng(0)
    for shift in range(_TRIES):
        ring_carry = _filled(reference.initialize_state(rows), layout, shift, generator)
        fresh = copy.initialize_state(rows)
        observed = jax.tree.map(
            lambda leaf: _noise((rows, *leaf.shape), leaf.dtype, generator), observation
        )
        given = (ring_carry, fresh, observed, layout)
        if not _difference(reference.step, copy.step, *given):
            continue
        with jax.disable_jit():
            difference = _difference(reference.step, copy.step, *given)
        if difference:
            raise DelayLayoutError(
                "the network acts otherwise once its delays are in time order, the layout of an "
                f"exported step: given the same past values, {difference}. Something reads the "
                f"carry of {listed(delay_modules(copy.merge()))} itself, at {line}. {REMEDY}"
            )


def _line_of_reader(
    reference: NetworkCopy,
    layout: list[CarryLeaf],
    observation: Any,
    batch_size: int | None,
    in_time_order: jcore.ClosedJaxpr,
) -> str | None:
    """Return the line that takes a ring or its pointer past the delay line, in either layout."""
    n_observation = len(jax.tree.leaves(observation))
    n_ordered = sum(leaf.exported_index is not None for leaf in layout)
    ordered = [leaf.exported_index for leaf in layout if leaf.source == "delay_buffer"]
    first = len(in_time_order.jaxpr.invars) - n_observation - n_ordered
    found = first_reader(in_time_order, [first + index for index in ordered if index is not None])
    if found is None:
        # As the golden trajectory needs it too, so that tracing it is not time lost.
        rows = GOLDEN_ROWS if batch_size is None else batch_size
        observed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype), observation
        )
        rings = [i for i, leaf in enumerate(layout) if leaf.source.startswith("delay_")]
        recorded = reference.step.trace(reference.initialize_state(rows), observed)
        found = first_reader(recorded.jaxpr, rings)
    return None if found is None else source_line_of(found)


def _difference(
    ring_step: Callable[..., Any],
    ordered_step: Callable[..., Any],
    carry: Any,
    fresh: Any,
    observation: Any,
    layout: list[CarryLeaf],
) -> str | None:
    """Return in words where the two steps first differ, or None if they agree."""
    action, next_carry = ring_step(carry, observation)
    ordered_carry = _in_time_order(carry, fresh, layout)
    ordered_action, ordered_next = ordered_step(ordered_carry, observation)
    expected = {"action": action, "next_carry": _in_time_order(next_carry, ordered_next, layout)}
    actual = {"action": ordered_action, "next_carry": ordered_next}
    for role, tree in expected.items():
        names = leaf_names(role, paths_of(tree, role))
        pairs = zip(jax.tree.leaves(actual[role]), jax.tree.leaves(tree), strict=True)
        for name, (one, other) in zip(names, pairs, strict=True):
            one, other = without_key_type(one), without_key_type(other)
            differs = _differs(one, other)
            if differs.any():
                index = tuple(int(i) for i in np.argwhere(differs)[0])
                return f"{name} is {one[index]} instead of {other[index]} at index {list(index)}"
    return None


def _filled(carry: Any, layout: list[CarryLeaf], shift: int, generator: np.random.Generator) -> Any:
    """Return `carry` with arbitrary past values and another pointer in each environment."""
    leaves, treedef = jax.tree.flatten(carry)
    for index, leaf in enumerate(layout):
        if leaf.source != "delay_buffer" or leaf.pointer_index is None:
            continue
        buffer, pointer = leaves[index], leaves[leaf.pointer_index]
        rows, depth = buffer.shape[:2]
        if not is_key(buffer):
            leaves[index] = _noise(buffer.shape, buffer.dtype, generator)
        leaves[leaf.pointer_index] = jnp.asarray((np.arange(rows) + 1 + shift) % depth).astype(
            pointer.dtype
        )
    return jax.tree.unflatten(treedef, leaves)


def _in_time_order(carry: Any, like: Any, layout: list[CarryLeaf]) -> Any:
    """Return `carry`, which has rings, in the layout of `like`."""
    leaves, (ordered, treedef) = jax.tree.leaves(carry), jax.tree.flatten(like)
    for value, leaf in zip(leaves, layout, strict=True):
        if leaf.exported_index is None:
            continue
        if leaf.source == "delay_buffer" and leaf.pointer_index is not None and not is_key(value):
            pointer = np.asarray(leaves[leaf.pointer_index])
            value = jnp.asarray(ring_to_time_order(np.asarray(value), pointer))
        ordered[leaf.exported_index] = value
    return jax.tree.unflatten(treedef, ordered)


def _noise(shape: tuple[int, ...], dtype: Any, generator: np.random.Generator) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.bool_):
        return jnp.asarray(generator.random(shape) < 0.5)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(generator.integers(0, 4, shape).astype(dtype))
    return jnp.asarray(generator.standard_normal(shape).astype(dtype))


def _differs(one: Any, other: Any) -> np.ndarray:
    if not jnp.issubdtype(other.dtype, jnp.floating):
        return np.asarray(one) != np.asarray(other)
    bound = _BOUND if other.dtype.itemsize > 2 else 10 * _BOUND
    actual, expected = np.asarray(one, np.float64), np.asarray(other, np.float64)
    scale = max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    return ~np.isclose(actual, expected, rtol=0.0, atol=bound * scale, equal_nan=True)
