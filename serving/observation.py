"""Checks an observation and writes it into the memory of a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving import tree
from serving.errors import ObservationError
from serving.manifest import Manifest

# Kinds of Python numbers that an element type takes without losing their meaning.
_CONVERTIBLE = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}


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

    def write(self, observation: Any) -> None:
        """Checks and copies one observation.

        Raises:
            ObservationError: naming the leaf; the targets may then be half written.
        """
        values = tree.flatten(
            self._node, observation, error=ObservationError, optional_without_port=True
        )
        for index, name, target in self._leaves:
            self._write_leaf(values[index], name, target)

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
