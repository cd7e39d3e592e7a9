"""Numbers of the metadata that go with the action, laid out as arrays of its ports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from serving.errors import BundleError
from serving.manifest import Metadata, Numbers, Port

ACTION_FIELDS = ("action_scale", "action_offset", "action_low", "action_high", "safe_action")
"""Fields of the metadata that hold one number for each element of the action."""


def check_action_values(metadata: Metadata, ports: Sequence[Port]) -> None:
    """Checks that every field of `ACTION_FIELDS` fits the action, and that low is below high.

    Raises:
        BundleError: naming the field, the port and both lengths.
    """
    for field in ACTION_FIELDS:
        action_values(metadata, field, ports)
    low = action_values(metadata, "action_low", ports)
    high = action_values(metadata, "action_high", ports)
    for port, below, above in zip(ports, low or [], high or [], strict=False):
        if (below > above).any():
            index = int(np.argmax(below > above))
            raise BundleError(
                "metadata",
                f"action_low is above action_high for element {index} of {port.name}: "
                f"{below.flat[index]} > {above.flat[index]}",
            )


def action_values(metadata: Metadata, field: str, ports: Sequence[Port]) -> list[np.ndarray] | None:
    """Returns a field as one float64 array for each action port, in the port's shape.

    Args:
        metadata: what the bundle says.
        field: one of `ACTION_FIELDS`.
        ports: the action's, in order.

    Returns:
        The arrays, without a batch axis; None if the field is not given.

    Raises:
        BundleError: if there are more or fewer numbers than the action has elements, or a mapping
            does not name exactly the action's ports.

    >>> ports = [Port("action", [], [2], "float32")]
    >>> action_values(Metadata(action_scale=0.5), "action_scale", ports)
    [array([0.5, 0.5])]
    """
    given: Numbers = getattr(metadata, field)
    if given is None:
        return None
    if isinstance(given, dict):
        names = [port.name for port in ports]
        if sorted(given) != sorted(names):
            raise BundleError(
                "metadata", f"{field} names {sorted(given)}, expected the action ports {names}"
            )
        return [_shaped(given[port.name], field, port) for port in ports]
    if not isinstance(given, list):
        return [_shaped(given, field, port) for port in ports]
    sizes = [math.prod(port.shape) for port in ports]
    if len(given) != sum(sizes):
        raise BundleError(
            "metadata", f"{field} has {len(given)} numbers, but the action has {sum(sizes)}"
        )
    parts = np.split(np.asarray(given, np.float64), np.cumsum(sizes)[:-1])
    return [part.reshape(port.shape) for part, port in zip(parts, ports, strict=True)]


def _shaped(value: float | list[float], field: str, port: Port) -> np.ndarray:
    size = math.prod(port.shape)
    if isinstance(value, list) and len(value) != size:
        raise BundleError(
            "metadata", f"{field} has {len(value)} numbers for {port.name}, which has {size}"
        )
    return np.broadcast_to(np.asarray(value, np.float64).reshape(-1), (size,)).reshape(port.shape)
