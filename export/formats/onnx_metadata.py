"""What an ONNX file says about itself in `metadata_props`, so that it is useful alone.

Keys without a prefix are those that robot projects (mjlab, Isaac Lab and what deploys their
policies) read already: values separated by commas, numbers as `repr` writes them, which reads back
to the same bits. Keys that start with `nnx_ppo.` are ours: plain text, or JSON. docs/onnx.md has
the table of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from export.errors import ExportError
from serving.action_values import ACTION_FIELDS, action_values
from serving.manifest import CarryPort, Manifest, Port

PREFIX = "nnx_ppo."

_LISTS = {
    "joint_names": "joint_names",
    "default_joint_pos": "default_joint_positions",
    "joint_stiffness": "joint_stiffness",
    "joint_damping": "joint_damping",
    "command_names": "command_names",
    "observation_names": "observation_terms",
}
"""Key → field of the metadata."""


def onnx_metadata(manifest: Manifest, initial_carry: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the entries of `metadata_props`.

    Args:
        manifest: Of the bundle under construction.
        initial_carry: Carry port → array without a batch axis.

    Raises:
        ExportError: A name holds a comma, which would make two of it for whoever reads the list.
    """
    return {
        **_for_robot_projects(manifest),
        **{PREFIX + key: _text(value) for key, value in _ours(manifest, initial_carry).items()},
    }


def _for_robot_projects(manifest: Manifest) -> dict[str, str]:
    metadata = manifest.metadata
    entries: dict[str, str] = {}
    for key, field in _LISTS.items():
        values = getattr(metadata, field)
        if values is not None:
            entries[key] = _separated(_in_port_order(values, manifest), field)
    for field in ACTION_FIELDS:
        # Whoever finds a scale here multiplies by it, so one already applied must not be found.
        if metadata.action_applied_by == "policy" and field in ("action_scale", "action_offset"):
            continue
        arrays = action_values(metadata, field, manifest.action_ports)
        if arrays is not None:
            numbers = [number for array in arrays for number in array.reshape(-1).tolist()]
            entries[field] = _separated(numbers, field)
    return entries


def _ours(manifest: Manifest, initial_carry: Mapping[str, np.ndarray]) -> dict[str, Any]:
    metadata = msgspec.to_builtins(manifest.metadata)
    return {
        "format_version": manifest.format_version,
        "name": manifest.name,
        "batch_size": manifest.batch_size,
        "control_rate_hz": manifest.control_rate_hz,
        "observation": [_described(port) for port in manifest.observation_ports],
        "action": [_described(port) for port in manifest.action_ports],
        **({} if manifest.reset_port is None else {"reset_input": manifest.reset_port.name}),
        "extra_outputs": [_described(port) for port in manifest.extra_output_ports],
        "applied_to_action": manifest.applied_to_action,
        "carry": [_carried(port, initial_carry[port.name]) for port in manifest.carry_ports],
        "metadata": {key: value for key, value in metadata.items() if value not in (None, {})},
        "versions": manifest.versions,
        "git_commit": manifest.git_commit,
    }


def _described(port: Port) -> dict[str, Any]:
    return {"name": port.name, "path": port.path, "shape": port.shape, "dtype": port.dtype}


def _carried(port: CarryPort, initial: np.ndarray) -> dict[str, Any]:
    return {
        "input": port.name,
        "output": port.next_name,
        "shape": port.shape,
        "dtype": port.dtype,
        "reset": port.reset,
        "kind": port.kind,
        "initial": _initial(np.asarray(initial)),
    }


def _initial(array: np.ndarray) -> Any:
    """Return one number where all elements are the same, else nested lists.

    JSON has no NaN and no infinities; their names in quotes are what NumPy reads back.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size and flat.tobytes() == flat[:1].tobytes() * flat.size:
        return _json_number(flat[0].item())
    return _nested(array.tolist())


def _nested(value: Any) -> Any:
    if isinstance(value, list):
        return [_nested(item) for item in value]
    return _json_number(value)


def _json_number(number: Any) -> Any:
    return str(number) if isinstance(number, float) and not np.isfinite(number) else number


def _in_port_order(values: Any, manifest: Manifest) -> list[Any]:
    """Return a list, joining a mapping's in the order of the ports, others by name after them."""
    if not isinstance(values, dict):
        return list(values)
    ports = [port.name for port in [*manifest.action_ports, *manifest.observation_ports]]
    names = sorted(values, key=lambda n: (ports.index(n) if n in ports else len(ports), n))
    return [item for name in names for item in values[name]]


def _separated(values: Sequence[Any], field: str) -> str:
    for index, value in enumerate(values):
        if isinstance(value, str) and "," in value:
            raise ExportError(
                f"metadata: {field}[{index}] is {value!r}; the ONNX file lists names separated by "
                "commas, so a name must not hold one. Rename it"
            )
    return ",".join(v if isinstance(v, str) else repr(float(v)) for v in values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)
