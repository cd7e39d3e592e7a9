"""Convert a carry between the network's layout and the exported one, exactly, at any step.

A rollout that JAX started can go on in a session, and the other way round:

    session.carry = to_exported_carry(bundle, network_carry)
    network_carry = to_network_carry(bundle, session.carry)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from export.delay_layout import ring_to_time_order, time_order_to_ring
from export.errors import CarryConversionError
from export.prng_keys import without_key_type
from export.structure import rebuild
from serving import read_bundle
from serving import tree as serving_tree
from serving.bundle import Bundle
from serving.manifest import CarryLeaf, Manifest, NetworkCarry


def to_exported_carry(bundle: Bundle | str | Path, network_carry: Any) -> dict[str, np.ndarray]:
    """Convert a carry of the network to the one that the bundle's artefacts take.

    Args:
        bundle: The bundle, or its path.
        network_carry: What `initialize_state` or a step of the network returned, leaves `[B, ...]`.

    Returns:
        Carry port name → array `[B, ...]`. Delay buffers come out newest first, several of them
        packed in one row; leaves that the action does not need are left out.

    Raises:
        CarryConversionError: The carry has another structure, shape or dtype.
    """
    manifest = _manifest(bundle)
    leaves = serving_tree.flatten(
        manifest.network_carry.tree, network_carry, root="carry", error=CarryConversionError
    )
    host = _checked(manifest.network_carry, leaves)
    return ExportedLayout(manifest.network_carry).of_leaves(host)


class ExportedLayout:
    """How the leaves of a network's carry lie in the exported one.

    Args:
        description: The manifest's.
    """

    def __init__(self, description: NetworkCarry):
        self._leaves = description.leaves
        self._pointers = _pointer_of_each_buffer(description)
        self._widths: dict[str, int] = {}
        for leaf in description.leaves:
            if leaf.port is not None and leaf.slots is not None:
                self._widths.setdefault(leaf.port, 0)
                self._widths[leaf.port] += math.prod(leaf.shape)

    def of_leaves(self, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Return port name → array `[B, ...]` for leaves `[B, ...]`, keys as raw key data."""
        converted: dict[str, np.ndarray] = {}
        for index, (leaf, value) in enumerate(zip(self._leaves, leaves, strict=True)):
            if leaf.port is None:
                continue
            if leaf.source == "delay_buffer":
                value = ring_to_time_order(value, leaves[self._pointers[index]])
            if leaf.slots is None:
                converted[leaf.port] = value
                continue
            if leaf.port not in converted:
                shape = (len(value), self._widths[leaf.port])
                converted[leaf.port] = np.empty(shape, value.dtype)
            put_slots(converted[leaf.port], leaf.slots, value)
        return converted


def put_slots(row: np.ndarray, slots: list[int], buffer: np.ndarray) -> None:
    """Write a buffer in time order, `[..., depth, *leaf]`, into its places in packed delays."""
    axis = row.ndim - 1
    for slot, column in enumerate(slots):
        value = np.take(buffer, slot, axis=axis).reshape(*row.shape[:-1], -1)
        row[..., column : column + value.shape[-1]] = value


def _from_slots(rows: np.ndarray, leaf: CarryLeaf) -> np.ndarray:
    """Return the buffer `[B, depth, *leaf]` that packed delays hold."""
    width = math.prod(leaf.shape[1:])
    slots = [rows[:, column : column + width] for column in leaf.slots or []]
    return np.stack(slots, axis=1).reshape(len(rows), *leaf.shape)


def to_network_carry(bundle: Bundle | str | Path, carry: Mapping[str, np.ndarray]) -> Any:
    """Convert a session's carry to one that the network continues from.

    Args:
        bundle: The bundle, or its path.
        carry: Carry port name → array `[B, ...]`, or without the batch axis for one environment.

    Returns:
        The network's carry in its own containers, JAX arrays `[B, ...]`. Ring buffers start at slot
        0; leaves that did not travel have the values of a fresh environment, PRNG keys one key per
        environment derived from the first.

    Raises:
        CarryConversionError: A port is missing, surplus, or of another shape or dtype.
    """
    manifest = _manifest(bundle)
    batched = _with_batch_axis(manifest, carry)
    description = manifest.network_carry
    batch_size = next((value.shape[0] for value in batched.values()), 1)
    leaves: list[Any] = []
    for leaf in description.leaves:
        if leaf.source == "delay_pointer":
            leaves.append(jnp.zeros((batch_size, *leaf.shape), leaf.dtype))
        elif leaf.port is None:
            leaves.append(_filled(leaf, batch_size))
        elif leaf.source == "delay_buffer":
            rows = batched[leaf.port]
            buffer = rows if leaf.slots is None else _from_slots(rows, leaf)
            leaves.append(jnp.asarray(time_order_to_ring(buffer)[0]))
        else:
            leaves.append(jnp.asarray(batched[leaf.port]))
    return rebuild(description.tree, leaves)


def _filled(leaf: CarryLeaf, batch_size: int) -> jax.Array:
    dtype = np.dtype(leaf.dtype)
    row = np.zeros(leaf.shape, dtype)
    if leaf.fill is not None:
        row = np.asarray([dtype.type(item) for item in leaf.fill], dtype).reshape(leaf.shape)
    if leaf.key_impl is None:
        return jnp.asarray(np.broadcast_to(row, (batch_size, *row.shape)))
    key = jax.random.wrap_key_data(jnp.asarray(row), impl=leaf.key_impl)
    keys = jax.random.split(key.reshape(-1)[0], (batch_size, *key.shape))
    return keys


def _manifest(bundle: Bundle | str | Path) -> Manifest:
    return bundle.manifest if isinstance(bundle, Bundle) else read_bundle(bundle).manifest


def _checked(description: NetworkCarry, leaves: list[Any]) -> list[np.ndarray]:
    """Return the leaves as NumPy arrays, keys as key data, after checking shapes and dtypes."""
    nodes = serving_tree.leaf_paths(description.tree, "carry")
    host: list[np.ndarray] = []
    batch_size: int | None = None
    for name, leaf, value in zip(nodes, description.leaves, leaves, strict=True):
        array = np.asarray(without_key_type(value))
        if array.ndim != len(leaf.shape) + 1 or list(array.shape[1:]) != leaf.shape:
            raise CarryConversionError(
                f"{name} has shape {list(array.shape)}, expected [B, "
                f"{', '.join(map(str, leaf.shape))}]"
            )
        if str(array.dtype) != leaf.dtype:
            raise CarryConversionError(f"{name} has dtype {array.dtype}, expected {leaf.dtype}")
        if batch_size not in (None, array.shape[0]):
            raise CarryConversionError(
                f"{name} holds {array.shape[0]} environments, the leaves before it {batch_size}"
            )
        batch_size = array.shape[0]
        host.append(array)
    return host


def _with_batch_axis(manifest: Manifest, carry: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    ports = {port.name: port for port in manifest.carry_ports}
    missing, surplus = sorted(set(ports) - set(carry)), sorted(set(carry) - set(ports))
    if missing or surplus:
        raise CarryConversionError(
            f"the carry must have exactly the ports {list(ports)}; missing {missing}, "
            f"unexpected {surplus}"
        )
    batched: dict[str, np.ndarray] = {}
    for name, port in ports.items():
        array = np.asarray(carry[name])
        if list(array.shape) == port.shape:
            array = array[None]
        if list(array.shape[1:]) != port.shape or str(array.dtype) != port.dtype:
            raise CarryConversionError(
                f"{name} is {array.dtype}{list(array.shape)}, expected {port.dtype} of shape "
                f"[B, {', '.join(map(str, port.shape))}]"
            )
        batched[name] = array
    sizes = {name: array.shape[0] for name, array in batched.items()}
    if len(set(sizes.values())) > 1:
        raise CarryConversionError(f"the ports hold different numbers of environments: {sizes}")
    return batched


def _pointer_of_each_buffer(description: NetworkCarry) -> dict[int, int]:
    """Return for each delay buffer's leaf the leaf of its pointer: a sibling in the same dict."""
    paths = leaf_paths(description.tree)
    pointers = {
        path[:-1]: index
        for index, (path, leaf) in enumerate(zip(paths, description.leaves, strict=True))
        if leaf.source == "delay_pointer"
    }
    found = {}
    for index, (path, leaf) in enumerate(zip(paths, description.leaves, strict=True)):
        if leaf.source == "delay_buffer":
            prefixes = [path[:n] for n in range(len(path)) if path[n] == "buffer"]
            found[index] = next(pointers[p] for p in reversed(prefixes) if p in pointers)
    return found


def leaf_paths(node: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every leaf of a `serving.tree` description."""
    if isinstance(node, serving_tree.Leaf):
        return [prefix]
    if isinstance(node, serving_tree.Nothing):
        return []
    if isinstance(node, serving_tree.Dict):
        keys: list[Any] = list(node.keys)
    elif isinstance(node, serving_tree.NamedTuple | serving_tree.Dataclass):
        keys = list(node.fields)
    else:
        keys = list(range(len(node.children)))
    return [
        path
        for key, child in zip(keys, node.children, strict=True)
        for path in leaf_paths(child, (*prefix, key))
    ]
