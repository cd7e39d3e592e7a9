"""Where the elements of an action lie in one vector.

Limits, interpolation and ramps are arithmetic on every element alike, so they work on one vector of
float64 that holds the floating-point leaves one after the other. Leaves of integers and booleans
have no values in between; they stay what they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from serving import tree
from serving.action_values import action_values
from serving.errors import BundleError, LoopError, TreeError
from serving.manifest import Manifest, Metadata, Numbers, Port


class ActionLayout:
    """The structure of an action, and the place of each floating-point leaf in a vector.

    Args:
        node: the action's tree.
        ports: its ports, in the manifest's order.
        batch_size: rows, or None for an action without a batch axis.
        scalar: whether the action is one Python number.
    """

    def __init__(
        self,
        node: tree.Node,
        ports: list[Port],
        batch_size: int | None,
        *,
        scalar: bool = False,
    ) -> None:
        self._node = node
        self._ports = ports
        self._batch_size = batch_size
        self._scalar = scalar
        lead = () if batch_size is None else (batch_size,)
        by_name = {port.name: port for port in ports}
        self.names = [str(leaf.port) for leaf in tree.leaves(node)]
        self._shapes = [(*lead, *by_name[name].shape) for name in self.names]
        self._dtypes = [np.dtype(by_name[name].dtype) for name in self.names]
        self._places: list[slice | None] = []
        largest: list[np.ndarray] = []
        self.size = 0
        for shape, dtype in zip(self._shapes, self._dtypes, strict=True):
            count = math.prod(shape) if dtype.kind == "f" else 0
            self._places.append(slice(self.size, self.size + count) if dtype.kind == "f" else None)
            self.size += count
            if dtype.kind == "f":
                largest.append(np.full(count, float(np.finfo(dtype).max)))
        self.largest = np.concatenate([*largest, np.zeros(0)])
        """The largest finite number of each element's dtype."""

    @classmethod
    def of_manifest(cls, manifest: Manifest, batch_size: int | None) -> ActionLayout:
        """Returns the layout of a policy's action."""
        return cls(manifest.action, manifest.action_ports, batch_size)

    @classmethod
    def of_value(cls, action: Any) -> ActionLayout | None:
        """Returns the layout of a number or an array, which a session without a manifest gave.

        None for anything else: what it consists of is not known.
        """
        if not isinstance(action, int | float | np.ndarray | np.generic):
            return None
        # A whole number may be followed by any other.
        array = np.asarray(float(action) if type(action) is int else action)
        port = Port("action", [], list(array.shape), array.dtype.name)
        leaf = tree.Leaf(port.name, port.shape, port.dtype)
        return cls(leaf, [port], None, scalar=not isinstance(action, np.ndarray))

    def gather(self, action: Any, vector: np.ndarray) -> list[Any]:
        """Writes an action's floating-point leaves into a vector and returns all its leaves.

        Other leaves that are arrays are copied: whoever gets the action may change them.

        Raises:
            LoopError: naming the leaf that does not fit.
        """
        try:
            leaves = tree.flatten(self._node, action, root="action")
            places = zip(leaves, self._places, self._shapes, strict=True)
            for index, (leaf, place, shape) in enumerate(places):
                if place is None:
                    leaves[index] = leaf.copy() if isinstance(leaf, np.ndarray) else leaf
                else:
                    if not (isinstance(leaf, np.ndarray) and leaf.shape == shape):
                        leaf = np.broadcast_to(leaf, shape)
                    vector[place] = leaf.reshape(-1)
        except (TreeError, ValueError, TypeError) as error:
            raise LoopError(
                f"the action does not have the structure of the policy's: {error}"
            ) from (error)
        return leaves

    def build(self, vector: np.ndarray, leaves: list[Any]) -> Any:
        """Returns an action of new arrays: floating-point leaves of a vector, the others given."""
        values: list[Any] = []
        for leaf, place, shape, dtype in zip(
            leaves, self._places, self._shapes, self._dtypes, strict=True
        ):
            if place is not None:
                value = vector[place].astype(dtype).reshape(shape)
                values.append(value[()].item() if self._scalar else value)
            elif self._scalar:
                values.append(leaf)
            else:
                values.append(np.array(np.broadcast_to(leaf, shape), dtype))
        return tree.unflatten(self._node, values)

    def spread(self, numbers: Numbers, what: str) -> np.ndarray | None:
        """Lays out numbers as metadata has them: one for all, a list, or a mapping by port.

        Returns:
            A vector of float64, each row of a batch alike; None if there are no numbers.

        Raises:
            LoopError: if they do not fit the action.
        """
        if numbers is None:
            return None
        vector = np.zeros(self.size)
        for array, place in zip(self._arrays(numbers, what), self._places, strict=True):
            if place is not None:
                vector[place] = array.reshape(-1)
        return vector

    def tree_of(self, numbers: Numbers, what: str) -> Any:
        """Makes an action of numbers as metadata has them.

        Raises:
            LoopError: if they do not fit the action.
        """
        return tree.unflatten(self._node, self._arrays(numbers, what))

    def _arrays(self, numbers: Numbers, what: str) -> list[np.ndarray]:
        """One array of float64 for each leaf, rows of a batch included."""
        try:
            arrays = action_values(Metadata(safe_action=numbers), "safe_action", self._ports)
        except (BundleError, ValueError) as error:
            reason = error.reason if isinstance(error, BundleError) else str(error)
            raise LoopError(f"{what}: {reason.replace('safe_action', 'the value')}") from error
        by_name = dict(zip([port.name for port in self._ports], arrays or [], strict=True))
        return [
            np.broadcast_to(by_name[name], shape)
            for name, shape in zip(self.names, self._shapes, strict=True)
        ]

    def inside(self, limit: np.ndarray, towards: float) -> np.ndarray:
        """Returns a limit as each leaf's dtype can say it, rounded towards a side if need be.

        A float32 nearest to a limit of float64 may lie just beyond it.
        """
        rounded = limit.copy()
        for place, dtype in zip(self._places, self._dtypes, strict=True):
            if place is None:
                continue
            with np.errstate(over="ignore"):  # beyond every number of the dtype: an infinity
                near = limit[place].astype(dtype)
            beyond = near > limit[place] if towards < 0 else near < limit[place]
            moved = np.nextafter(near, dtype.type(towards))
            rounded[place] = np.where(beyond, moved, near)
        return rounded
