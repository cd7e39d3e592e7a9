"""Fit a bundle's metadata to its action: lengths, and names of the action's leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from export.errors import MetadataError
from serving.manifest import Metadata, Port

FIELDS = (
    "joint_names",
    "default_joint_positions",
    "action_scale",
    "action_offset",
    "action_low",
    "action_high",
    "safe_action",
)
"""Fields with one value for each element of the action, or a mapping of such by action leaf."""


def fit_metadata(metadata: Metadata, action_ports: Sequence[Port]) -> Metadata:
    """Check what belongs to the action's elements, and name its leaves as the manifest does.

    A list must have one value for each element of the whole action, leaf after leaf in port order;
    a mapping one entry for each leaf, by its path (`arm_L`) or its port (`action.arm_L`), each a
    number for all or a list of the leaf's width.

    Returns:
        The metadata, mappings by port.

    Raises:
        MetadataError: Naming the field, what it has and what the action has.
    """
    changed: dict[str, Any] = {}
    for field in FIELDS:
        value = getattr(metadata, field)
        if isinstance(value, dict):
            changed[field] = _by_port(field, value, action_ports)
        elif isinstance(value, list):
            _check_length(field, value, sum(map(_width, action_ports)), _described(action_ports))
    return msgspec.structs.replace(metadata, **changed)


def _by_port(field: str, values: dict[str, Any], ports: Sequence[Port]) -> dict[str, Any]:
    port_of = {".".join(map(str, port.path)): port for port in ports}
    port_of |= {port.name: port for port in ports}
    found: dict[str, Any] = {}
    for key, value in values.items():
        port = port_of.get(key)
        if port is None or port.name in found:
            what = "names no leaf of the action" if port is None else "names a leaf twice"
            raise MetadataError(f"metadata: {field}.{key} {what}, {_described(ports)}")
        if isinstance(value, list):
            _check_length(f"{field}.{key}", value, _width(port), _described([port]))
        found[port.name] = value
    if missing := [port.name for port in ports if port.name not in found]:
        raise MetadataError(
            f"metadata: {field} has no entry for {', '.join(missing)}; the action is "
            f"{_described(ports)}"
        )
    return {port.name: found[port.name] for port in ports}


def _check_length(field: str, values: list[Any], width: int, action: str) -> None:
    if len(values) != width:
        raise MetadataError(
            f"metadata: {field} has {len(values)} values, but the action has {width} elements "
            f"({action}); give one for each, in that order"
        )


def _width(port: Port) -> int:
    return math.prod(port.shape)


def _described(ports: Sequence[Port]) -> str:
    return ", ".join(f"{port.name}{port.shape}" for port in ports)
