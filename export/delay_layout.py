"""The two layouts of a carry: the network's ring buffers and the exported time order.

A `Delay` or a `PopulationGraph` in training holds a ring and a pointer per environment. The
exported step holds the same values in time order: slot k-1 is the value of k steps ago and there is
no pointer. Here both carries are laid side by side, leaf by leaf, and converted exactly.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx

from export.errors import DelayLayoutError
from nnx_ppo.networks.delay_line import TIME_ORDERED, DelayLine

_POINTERS = ("buffer_idx", "idx")


@dataclasses.dataclass(frozen=True)
class CarryLeaf:
    """How one leaf of the network's carry relates to the exported carry."""

    source: str
    """`exported` (same array), `delay_buffer` (ring, reordered) or `delay_pointer` (gone)."""
    exported_index: int | None
    """Position of the matching leaf among the exported carry's leaves."""
    pointer_index: int | None = None
    """For a buffer: position of its pointer among the network carry's leaves."""


def use_time_order(network: nnx.Module) -> None:
    """Switch every delay line inside `network`, a private copy, to time order."""
    for _, module in nnx.iter_modules(network):
        if _has_delay_line(module):
            setattr(module, "delay_line", TIME_ORDERED)  # noqa: B010  (any module may have one)


def delay_modules(network: nnx.Module) -> list[str]:
    """Return the path and class of every module with a delay line, such as `2 (Delay)`."""
    return [
        f"{'.'.join(map(str, path)) or 'network'} ({type(module).__qualname__})"
        for path, module in nnx.iter_modules(network)
        if _has_delay_line(module)
    ]


def _has_delay_line(module: Any) -> bool:
    # A user's module may call something else by that name.
    return isinstance(getattr(module, "delay_line", None), DelayLine)


def align(network_carry: Any, exported_carry: Any) -> list[CarryLeaf]:
    """Match the leaves of a carry in both layouts.

    Args:
        network_carry: `initialize_state` of the network as trained.
        exported_carry: The same of the copy whose delay lines are in time order.

    Returns:
        One entry per leaf of `network_carry`, in the order of `jax.tree.leaves`.
    """
    numbered, _ = _numbered(network_carry)
    exported, _ = _numbered(exported_carry)
    found: dict[int, CarryLeaf] = {}
    _align(numbered, exported, found, "carry")
    layout = [found[index] for index in range(len(found))]
    _refuse_other_leaves(layout, network_carry, jax.tree.leaves(exported_carry))
    return layout


def _refuse_other_leaves(layout: list[CarryLeaf], network_carry: Any, exported: list[Any]) -> None:
    named = jax.tree_util.tree_flatten_with_path(network_carry)[0]
    for leaf, (path, own) in zip(layout, named, strict=True):
        if leaf.exported_index is None:
            continue
        other = exported[leaf.exported_index]
        if own.shape != other.shape or own.dtype != other.dtype:
            raise DelayLayoutError(
                f"carry{jax.tree_util.keystr(path)} is {own.dtype}{list(own.shape)}, and "
                f"{other.dtype}{list(other.shape)} once delays are in time order, which has no "
                "pointer: `initialize_state` makes it from the carry of a Delay or "
                "PopulationGraph. Keep that carry as it is, as an entry of your own"
            )


def _numbered(tree: Any) -> tuple[Any, int]:
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, range(len(leaves))), len(leaves)


def _align(network: Any, exported: Any, found: dict[int, CarryLeaf], where: str) -> None:
    if jax.tree.structure(network) == jax.tree.structure(exported):
        for own, other in zip(jax.tree.leaves(network), jax.tree.leaves(exported), strict=True):
            found[own] = CarryLeaf("exported", other)
        return
    pointer = _pointer_key(network, exported)
    if pointer is not None:
        pairs = zip(
            jax.tree.leaves(network["buffer"]), jax.tree.leaves(exported["buffer"]), strict=True
        )
        for own, other in pairs:
            found[own] = CarryLeaf("delay_buffer", other, network[pointer])
        found[network[pointer]] = CarryLeaf("delay_pointer", None)
        return
    own_parts, other_parts = _children(network), _children(exported)
    if [key for key, _ in own_parts] != [key for key, _ in other_parts]:
        raise DelayLayoutError(
            f"{where} has another structure once delays are in time order, which has no pointer: "
            f"{[key for key, _ in own_parts]} against {[key for key, _ in other_parts]}. "
            "Keep the carry of a Delay or PopulationGraph as it is, as an entry of your own"
        )
    for (key, own), (_, other) in zip(own_parts, other_parts, strict=True):
        _align(own, other, found, f"{where}.{key}")


def _pointer_key(network: Any, exported: Any) -> str | None:
    if not (isinstance(network, dict) and isinstance(exported, dict)):
        return None
    for key in _POINTERS:
        if set(network) == {"buffer", key} and set(exported) == {"buffer"}:
            return key
    return None


def _children(tree: Any) -> list[tuple[str, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    return [(jax.tree_util.keystr(path), child) for path, child in flat]


def ring_to_time_order(buffer: np.ndarray, pointer: np.ndarray) -> np.ndarray:
    """Reorder a ring so that slot k-1 holds the value of k steps ago.

    Args:
        buffer: `(B, D, *leaf)`, any dtype.
        pointer: `(B,)` integers, where the next value would be written.

    Returns:
        `(B, D, *leaf)`, the same values.
    """
    depth = buffer.shape[1]
    ages = np.arange(1, depth + 1)
    slots = (np.asarray(pointer, np.int64)[:, None] - ages[None, :]) % depth
    return buffer[np.arange(buffer.shape[0])[:, None], slots]


def time_order_to_ring(buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reorder a time-ordered buffer into a ring whose pointer is 0.

    Args:
        buffer: `(B, D, *leaf)`, slot k-1 the value of k steps ago.

    Returns:
        The ring `(B, D, *leaf)` and the pointer `(B,)` int32, all zero. A ring is determined up to
        its rotation; this is the one that a freshly filled ring has.
    """
    return buffer[:, ::-1].copy(), np.zeros(buffer.shape[0], np.int32)
