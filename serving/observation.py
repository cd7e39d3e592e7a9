"""Checks an observation and writes it into the memory of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from serving import tree
from serving.errors import ObservationError
from serving.manifest import Manifest
from serving.tree_access import reader

# Kinds of Python numbers that an element type takes without losing their meaning.
_CONVERTIBLE = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}

_FEW = 24
"""Elements whose sum Python finds before BLAS does."""


class ObservationWriter:
    """Copies the leaves of an observation tree into arrays, one for each port.

    Args:
        manifest: says what the tree looks like.
        targets: one array for each observation port, in port order.
        batch_size: None if the targets have no batch axis; only for messages.
        check_finite: refuse NaN and infinities.
    """

    def __init__(
        self,
        manifest: Manifest,
        targets: list[np.ndarray],
        batch_size: int | None,
        *,
        check_finite: bool,
    ) -> None:
        self._node = manifest.observation
        self._batch_size = batch_size
        self._check_finite = check_finite
        names = [port.name for port in manifest.observation_ports]
        by_name = dict(zip(names, targets, strict=True))
        self._leaves: list[tuple[int, str, np.ndarray]] = [
            (index, leaf.port, by_name[leaf.port])
            for index, leaf in enumerate(tree.leaves(self._node))
            if leaf.port is not None
        ]
        self.write_quickly = self._quick_way()
        """Copies an observation of arrays that all fit, or returns False and may have copied some.

        That is what happens in a robot's every step, and takes a few microseconds less. What it
        does not take is for `write_carefully`."""

    def write(self, observation: Any) -> None:
        """Checks and copies one observation.

        Raises:
            ObservationError: naming the leaf; the targets may then be half written.
        """
        if not self.write_quickly(observation):
            self.write_carefully(observation)

    def write_carefully(self, observation: Any) -> None:
        """Checks and copies one observation of any kind that can be converted.

        Raises:
            ObservationError: naming the leaf; the targets may then be half written.
        """
        values = tree.flatten(
            self._node, observation, error=ObservationError, optional_without_port=True
        )
        for index, name, target in self._leaves:
            self._write_leaf(values[index], name, target)

    def _quick_way(self) -> Callable[[Any], bool]:
        copies = [(index, self._array_copier(target)) for index, _, target in self._leaves]
        if isinstance(self._node, tree.Leaf) and copies:
            return copies[0][1]
        read = reader(self._node)

        def written(observation: Any) -> bool:
            values: list[Any] = []
            if not read(observation, values):
                return False
            return all(copy(values[index]) for index, copy in copies)

        return written

    def _array_copier(self, target: np.ndarray) -> Callable[[Any], bool]:
        shape, dtype = target.shape, target.dtype
        flat = target.reshape(-1)  # a view: targets are contiguous
        is_checked = self._check_finite and dtype.kind == "f"
        # A sum is finite only if each term is; of terms so large that it overflows, each is asked.
        # Few numbers are added fastest as Python's, many as squares by BLAS.
        numbers = flat.tolist if flat.size <= _FEW or dtype.itemsize < 4 else None
        isfinite = math.isfinite

        def copied(value: Any) -> bool:
            if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
                target[...] = value
                if not is_checked:
                    return True
                if isfinite(flat.dot(flat) if numbers is None else sum(numbers())):
                    return True
                return bool(np.isfinite(flat).all())
            return False

        return copied

    def _write_leaf(self, value: Any, name: str, target: np.ndarray) -> None:
        if isinstance(value, np.ndarray) or _is_foreign_array(value):
            if isinstance(value, np.ma.MaskedArray):
                raise ObservationError(
                    f"{name}: is a masked array, and an observation has no mask; give its masked "
                    "elements a value with .filled(...)"
                )
            value = np.asarray(value)
            if value.dtype != target.dtype:
                raise ObservationError(
                    f"{name}: dtype {value.dtype}, expected {target.dtype}; convert it with "
                    f".astype(np.{target.dtype.name})"
                )
        else:
            value = self._convert(value, name, target)
        if value.shape != target.shape:
            hint = "" if self._batch_size is None else f" (a batch of {self._batch_size} rows)"
            raise ObservationError(f"{name}: shape {value.shape}, expected {target.shape}{hint}")
        np.copyto(target, value)
        if self._check_finite and target.dtype.kind == "f" and not np.isfinite(target).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(target))[0])
            raise ObservationError(
                f"{name}: {target[where]} at index {list(where)}; observations must be finite"
            )

    def _convert(self, value: Any, name: str, target: np.ndarray) -> np.ndarray:
        """Makes an array of a Python number or nested lists of them."""
        try:
            given = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise ObservationError(
                f"{name}: cannot be made an array of {target.dtype}{list(target.shape)}: {error}"
            ) from error
        if given.dtype.kind not in _CONVERTIBLE[target.dtype.kind] and given.size:
            raise ObservationError(
                f"{name}: {type(value).__name__} of {given.dtype}, expected numbers of type "
                f"{target.dtype}"
            )
        with np.errstate(over="ignore"):  # an overflow is an infinity, which is reported as such
            converted = given.astype(target.dtype)
        if target.dtype.kind in "iu" and not np.array_equal(converted, given):
            raise ObservationError(f"{name}: {value!r} is out of range for {target.dtype}")
        return converted


def _is_foreign_array(value: Any) -> bool:
    """Whether a value is an array of another library; NumPy's own scalars count as numbers."""
    return hasattr(value, "__array__") and not isinstance(value, np.generic)
